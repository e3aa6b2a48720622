"""The links to executors: finds them, follows them coming and going, brings results back."""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import grpc
import structlog
from google.protobuf.message import DecodeError

from sits_channel import wire
from sits_channel.link import Link, LinkClient
from sits_channel.pool_probe import shares_memory
from sits_channel.ring_files import Rings
from sits_dispatcher.catalog import Key, MergedCatalog
from sits_dispatcher.dispatcher import Dispatcher
from sits_dispatcher.memory_rows import row_limit
from sits_protos.v1.link_pb2 import Catalog, Credits, Hello, ModelEntry, ModelState
from sits_scheduling.candidates import Executor

log = structlog.get_logger()

METHOD = "/sits.v1.Execute/Link"


@dataclass(slots=True)
class Member:
    """A linked executor. `hello` comes first on its link, everything else after it. `windows`
    are our part of its slots, where it told one."""

    link: Link
    hello: Hello
    shares_memory: bool = False
    windows: Mapping[Key, int] = field(default_factory=dict)
    results: int = 0
    errors: int = 0

    def window(self, entry: ModelEntry) -> int:
        """Batches of it that we may have there at once."""
        if entry.state != ModelState.MODEL_STATE_READY:
            return 0
        return min(entry.slots, self.windows.get((entry.name, entry.version), entry.slots))


class Executors:
    """One link client per known address, and the state each executor told us."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        open_channel: Callable[[str], grpc.Channel],
        metadata: tuple[tuple[str, str], ...],
        greeting: Callable[[], bytes],
        shm_dir: str,
        rings: Rings | None = None,
    ) -> None:
        self._dispatcher, self._open_channel, self._metadata = dispatcher, open_channel, metadata
        self._greeting, self._shm_dir, self._rings = greeting, shm_dir, rings
        self._clients: dict[str, LinkClient] = {}
        self._members: dict[Link, Member] = {}
        self._catalog = MergedCatalog()
        self._free: Mapping[str, int] = {}
        self._lock = threading.RLock()
        self.changed: Callable[[], object] = lambda: None
        self.credited: Callable[[], object] = lambda: None

    # membership

    def follow(self, addresses: Iterable[str]) -> None:
        """Link to exactly these addresses from now on.

        An address whose link is up stays, even when it is no longer named: the executor
        itself says when it leaves, a lease may only be late.
        """
        wanted = set(addresses)
        with self._lock:
            for address in wanted - self._clients.keys():
                self._clients[address] = client = self._client(address)
                client.start()
            stale = [a for a, c in self._clients.items() if a not in wanted and c.link is None]
            dropped = [self._clients.pop(address) for address in stale]
        for client in dropped:
            client.stop()

    def _client(self, address: str) -> LinkClient:
        return LinkClient(address, METHOD, self, self._open_channel, self._metadata, self._rings)

    def stop(self) -> None:
        with self._lock:
            clients = list(self._clients.values())
            self._clients.clear()
        for client in clients:
            client.stop()

    def members(self) -> list[Member]:
        with self._lock:
            return list(self._members.values())

    def addresses(self) -> list[str]:
        return list(self._clients)

    def catalog(self) -> Catalog:
        with self._lock:
            return self._catalog.merged()

    def models_of(self, executor_id: str) -> list[ModelEntry]:
        """What one executor announced."""
        with self._lock:
            return list(self._catalog.of(executor_id).values())

    # link listener

    def opened(self, link: Link) -> None:
        link.write(self._greeting())

    def received(self, link: Link, message: bytes) -> None:
        try:
            self._handle(link, wire.split(message))
        except (wire.MalformedMessage, DecodeError) as error:
            log.warning("executor.malformed", peer=link.peer, error=str(error))
            link.close()

    def closed(self, link: Link, reason: str) -> None:
        with self._lock:
            member = self._members.pop(link, None)
        if member is None:
            return
        log.warning("executor.lost", executor=member.hello.id, peer=link.peer, reason=reason)
        self._leave(member.hello.id)
        self.changed()

    # steps

    def _handle(self, link: Link, message: wire.Split) -> None:
        if message.kind == wire.HELLO:
            self._greeted(link, Hello.FromString(message.head))
            return
        member = self._members.get(link)
        if member is None:
            raise wire.MalformedMessage("expected Hello first")
        if message.kind == wire.RESULT:
            member.results += 1
            self._dispatcher.result(member.hello.id, message.head, message.body)
        elif message.kind == wire.CATALOG:
            self._announced(member, Catalog.FromString(message.head))
        elif message.kind == wire.CREDITS:
            self._credited(member, Credits.FromString(message.head))
        else:
            log.warning("executor.unexpected", peer=link.peer, kind=message.kind)

    def _greeted(self, link: Link, hello: Hello) -> None:
        """First Hello: it joins. A later one tells that it drains."""
        with self._lock:
            known = self._members.get(link)
            if known is not None:
                known.hello = hello
            else:
                self._members[link] = Member(link, hello, self._shares(hello))
        if known is None:
            self._join(link, hello)
        elif hello.draining:
            log.info("executor.draining", executor=hello.id)
            self._serve_nothing(hello.id)
        self.changed()

    def _shares(self, hello: Hello) -> bool:
        return shares_memory(self._shm_dir, hello.shm_probe, hello.shm_nonce)

    def _join(self, link: Link, hello: Hello) -> None:
        with self._dispatcher.lock:
            self._dispatcher.table.add(Executor(hello.id, hello.host, hello.device))
            self._dispatcher.executor_joined(hello.id, link, shares_memory=self._shares(hello))
        log.info("executor.linked", executor=hello.id, peer=link.peer, device=hello.device)

    def _leave(self, executor_id: str) -> None:
        with self._lock:
            self._catalog.leave(executor_id)
        with self._dispatcher.lock:
            self._dispatcher.table.remove(executor_id)
            self._dispatcher.executor_lost(executor_id)

    def _announced(self, member: Member, catalog: Catalog) -> None:
        if member.hello.draining:
            return
        executor_id = member.hello.id
        with self._lock:
            before = set(self._catalog.of(executor_id))
            self._catalog.announce(executor_id, catalog.models)
        with self._dispatcher.lock:
            table = self._dispatcher.table
            for name, version in before:
                table.serve(executor_id, f"{name}/{version}", 0, 0)
            for entry in catalog.models:
                self._serve(member, entry)
            self._dispatcher.pump()
        self.changed()

    def _credited(self, member: Member, credits_: Credits) -> None:
        """Its other dispatchers began or ceased to send, or its models are about to change."""
        entries = self.models_of(member.hello.id)
        with self._dispatcher.lock:
            before = [member.window(entry) for entry in entries]
            member.windows = {(c.model, c.version): c.window for c in credits_.models}
            if before == [member.window(entry) for entry in entries]:
                return
            for entry in entries:
                self._serve(member, entry)
            self._dispatcher.pump()
        self.credited()

    def _serve(self, member: Member, entry: ModelEntry) -> None:
        """Of what it runs at once, our part counts, and that may be half a run. Callers hold the
        dispatcher's lock."""
        window = member.window(entry)
        ours = window / entry.slots if window else 1.0
        self._dispatcher.table.serve(
            member.hello.id, f"{entry.name}/{entry.version}", window, entry.instances * ours,
            self._rows(member, entry),
        )  # fmt: skip

    def follow_memory(self, free: Mapping[str, int]) -> None:
        """Free bytes by device: micro-batches of executors on them fit from now on."""
        if free == self._free:
            return
        before, self._free = self._limits(), free
        if self._limits() != before:
            for member in self.members():
                self._announced(member, Catalog(models=self.models_of(member.hello.id)))

    def _limits(self) -> list[int]:
        return [
            self._rows(member, entry)
            for member in self.members()
            for entry in self.models_of(member.hello.id)
        ]

    def _rows(self, member: Member, entry: ModelEntry) -> int:
        free = self._free.get(member.hello.device)
        return entry.micro_batch_rows if free is None else row_limit(entry, free)

    def _serve_nothing(self, executor_id: str) -> None:
        with self._lock:
            own = list(self._catalog.of(executor_id))
            self._catalog.leave(executor_id)
        with self._dispatcher.lock:
            for name, version in own:
                self._dispatcher.table.serve(executor_id, f"{name}/{version}", 0, 0)
