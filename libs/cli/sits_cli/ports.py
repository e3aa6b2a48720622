"""Which addresses the services of one machine get, and whether they are free."""

import random
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from sits_core.settings import SettingsError, host_of

DEFAULTS = {
    "SITS_PREPROCESS_BIND": "127.0.0.1:8001",
    "SITS_PREPROCESS_METRICS_BIND": "127.0.0.1:8002",
    "SITS_PREPROCESS_CONTROL_BIND": "127.0.0.1:8003",
    "SITS_DISPATCHER_BIND": "127.0.0.1:8010",
    "SITS_DISPATCHER_ADMIN_BIND": "127.0.0.1:8080",
    "SITS_EXECUTOR_BIND": "127.0.0.1:8020",
    "SITS_EXECUTOR_METRICS_BIND": "127.0.0.1:8021",
    "SITS_TOPOLOGY_BIND": "127.0.0.1:8030",
    "SITS_TOPOLOGY_METRICS_BIND": "127.0.0.1:8031",
}
EXECUTOR_VARIABLES = ("SITS_EXECUTOR_BIND", "SITS_EXECUTOR_METRICS_BIND")
EXECUTORS = 2
"""So many does `sits up` start unless told otherwise."""
MAX_PORT = 65_535
_BLOCKS = range(15_000, 32_000, 16)
"""Blocks of 16 ports. Linux takes those of outgoing connections from 32768 on."""
EXECUTOR_STEP = 2
"""Each further executor takes the next pair of ports that nobody else has."""


@dataclass(frozen=True, slots=True)
class AddressBook:
    """Where everything listens, host:port. `executors` are (serving, metrics) pairs."""

    front: str
    front_metrics: str
    front_control: str
    dispatcher: str
    admin: str
    topology: str
    topology_metrics: str
    executors: tuple[tuple[str, str], ...]

    def all(self) -> dict[str, str]:
        """What listens where, by the variable that sets it."""
        fixed = dict(zip(DEFAULTS, self._fixed(), strict=True))
        more = {
            f"{variable} of executor {number}": address
            for number, pair in enumerate(self.executors)
            for variable, address in zip(EXECUTOR_VARIABLES, pair, strict=True)
        }
        return {k: v for k, v in fixed.items() if v} | more

    def _fixed(self) -> tuple[str, ...]:
        edge = (self.front, self.front_metrics, self.front_control)
        return (*edge, self.dispatcher, self.admin, "", "", self.topology, self.topology_metrics)


def configured(executors: int, environ: Mapping[str, str]) -> AddressBook:
    """The default ports, or those that the environment sets."""
    bind = {name: environ.get(name, default) for name, default in DEFAULTS.items()}
    for name, address in bind.items():
        _require_address(name, address)
    taken = {a for name, a in bind.items() if name not in EXECUTOR_VARIABLES}
    pairs: list[tuple[str, str]] = []
    pair = tuple(bind[name] for name in EXECUTOR_VARIABLES)
    while len(pairs) < executors:
        if not taken & set(pair):
            pairs.append((pair[0], pair[1]))
            taken |= set(pair)
        pair = tuple(_shifted(address) for address in pair)
    return _book(bind, pairs)


def free(executors: int) -> AddressBook:
    """Loopback ports that nobody uses right now, for tests and demonstrations."""
    ports = iter(free_ports(len(DEFAULTS) + 2 * executors))
    bind = {name: f"127.0.0.1:{next(ports)}" for name in DEFAULTS}
    pairs = [(f"127.0.0.1:{next(ports)}", f"127.0.0.1:{next(ports)}") for _ in range(executors)]
    return _book(bind, pairs)


def free_ports(count: int) -> list[int]:
    """Free now, and no process that asks for ports here gets them while this one lives.

    Below the range from which the kernel takes ports for outgoing connections: one of those
    could take the place of a service before it starts, or while it starts again.
    """
    found: list[int] = []
    while len(found) < count:
        found += [port for port in _own_block() if not in_use(f"127.0.0.1:{port}")]
    return found[:count]


def _own_block() -> range:
    """Ports that are ours: whoever binds the block's name has it until its process ends."""
    for first in random.sample(_BLOCKS, len(_BLOCKS)):
        mark = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            mark.bind(f"\0sits-ports-{first}")
        except OSError:
            mark.close()
            continue
        mark.detach()
        return range(first, first + _BLOCKS.step)
    raise SettingsError("no ports left between 15000 and 32000")


def require_free(book: AddressBook) -> None:
    """Raise `SettingsError` naming all ports that someone else holds."""
    taken = [f"{address} ({name})" for name, address in book.all().items() if in_use(address)]
    if taken:
        raise SettingsError(
            f"{', '.join(taken)} {'is' if len(taken) == 1 else 'are'} in use: stop what listens "
            "there (is another `sits up` running?), or choose other ports with the variables "
            "named; executors after the first take the next ports"
        )


def in_use(address: str) -> bool:
    """Whether listening there fails; an address that is not ours counts as in use."""
    host, port = host_of(address), int(address.rpartition(":")[2])
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False


def is_address(text: str) -> bool:
    """Whether it is host:port, with a port that one can call."""
    port = text.rpartition(":")[2]
    digits = port.isascii() and port.isdecimal() and len(port) <= len(str(MAX_PORT))
    return bool(host_of(text)) and digits and 0 < int(port) <= MAX_PORT


def _require_address(variable: str, address: str) -> None:
    if not is_address(address):
        raise SettingsError(f"{variable}={address}: expected host:port with a port of 1 to 65535")


def _shifted(address: str) -> str:
    host, _, port = address.rpartition(":")
    following = f"{host}:{int(port) + EXECUTOR_STEP}"
    if not is_address(following):
        raise SettingsError(f"no port follows {address}: further executors take the next ones")
    return following


def _book(bind: Mapping[str, str], pairs: list[tuple[str, str]]) -> AddressBook:
    return AddressBook(
        front=bind["SITS_PREPROCESS_BIND"],
        front_metrics=bind["SITS_PREPROCESS_METRICS_BIND"],
        front_control=bind["SITS_PREPROCESS_CONTROL_BIND"],
        dispatcher=bind["SITS_DISPATCHER_BIND"],
        admin=bind["SITS_DISPATCHER_ADMIN_BIND"],
        topology=bind["SITS_TOPOLOGY_BIND"],
        topology_metrics=bind["SITS_TOPOLOGY_METRICS_BIND"],
        executors=tuple(pairs),
    )
