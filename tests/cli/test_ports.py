"""Addresses of the services of one machine."""

import socket
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace

import pytest

from sits_cli import ports
from sits_core.settings import SettingsError


def test_executors_that_no_port_is_left_for_are_a_wrong_setting() -> None:
    with pytest.raises(SettingsError, match=r"no port follows 127\.0\.0\.1:65534"):
        ports.configured(2, {"SITS_EXECUTOR_BIND": "127.0.0.1:65534"})


@pytest.mark.parametrize("port", ["9" * 5000, "٣", "²", "", "-1", "0"])
def test_what_is_no_port_is_no_address(port: str) -> None:
    assert not ports.is_address(f"host:{port}")


def test_the_defaults_are_the_documented_ports() -> None:
    book = ports.configured(2, {})
    assert book.front == "127.0.0.1:8001"
    assert book.dispatcher == "127.0.0.1:8010"
    assert book.topology == "127.0.0.1:8030"
    assert book.executors == (
        ("127.0.0.1:8020", "127.0.0.1:8021"),
        ("127.0.0.1:8022", "127.0.0.1:8023"),
    )


def test_the_environment_overrides_them() -> None:
    variables = {"SITS_PREPROCESS_BIND": "0.0.0.0:9001", "SITS_EXECUTOR_BIND": "127.0.0.1:9020"}
    book = ports.configured(2, variables)
    assert book.front == "0.0.0.0:9001"
    assert [serving for serving, _ in book.executors] == ["127.0.0.1:9020", "127.0.0.1:9022"]


@pytest.mark.parametrize("executors", [1, 5, 16])
def test_no_two_services_share_an_address(executors: int) -> None:
    for book in (ports.configured(executors, {}), ports.free(executors)):
        addresses = list(book.all().values())
        assert len(set(addresses)) == len(addresses) == 7 + 2 * executors


@pytest.mark.parametrize(
    "wrong", ["8001", "localhost", "127.0.0.1:", "127.0.0.1:0", "a:b", "h:99999"]
)
def test_an_address_that_is_none_is_refused_with_its_variable(wrong: str) -> None:
    with pytest.raises(SettingsError, match="SITS_TOPOLOGY_BIND"):
        ports.configured(1, {"SITS_TOPOLOGY_BIND": wrong})


def test_a_port_in_use_is_refused_with_its_variable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        book = replace(ports.free(1), dispatcher=address)
        with pytest.raises(
            SettingsError, match=rf"^{address} \(SITS_DISPATCHER_BIND\) is in use: "
        ):
            ports.require_free(book)


def test_all_ports_in_use_are_named_at_once() -> None:
    with ExitStack() as stack:
        servers = (stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2))
        first, second = (f"127.0.0.1:{server.getsockname()[1]}" for server in servers)
        book = ports.free(1)
        book = replace(book, front=first, executors=(*book.executors, (second, free_address())))
        with pytest.raises(SettingsError) as refused:
            ports.require_free(book)
        assert str(refused.value).startswith(
            f"{first} (SITS_PREPROCESS_BIND), "
            f"{second} (SITS_EXECUTOR_BIND of executor 1) are in use: "
        )


def free_address() -> str:
    return f"127.0.0.1:{ports.free_ports(1)[0]}"


def test_free_ports_are_free() -> None:
    ports.require_free(ports.free(3))


def test_free_ports_are_none_that_outgoing_connections_get() -> None:
    with open("/proc/sys/net/ipv4/ip_local_port_range") as limits:
        lowest, highest = map(int, limits.read().split())
    assert all(not lowest <= port <= highest for port in ports.free_ports(20))


def test_two_processes_never_get_the_same_ports() -> None:
    """Not even before they listen there."""
    program = "import sys; from sits_cli import ports; print(*ports.free_ports(40), flush=True); "
    command = [sys.executable, "-c", program + "sys.stdin.read()"]
    own = set(ports.free_ports(40))
    with ExitStack() as stack:
        for _ in range(2):
            other = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            )
            stack.callback(other.stdin.close)
            theirs = set(map(int, other.stdout.readline().split()))
            assert len(theirs) == 40
            assert not own & theirs
            own |= theirs
