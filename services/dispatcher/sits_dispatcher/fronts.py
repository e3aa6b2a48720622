"""The links from front doors: greets them, tells them models and credits, takes batches."""

import threading
from collections.abc import Callable

import structlog
from google.protobuf.message import DecodeError

from sits_channel import wire
from sits_channel.link import Link
from sits_channel.pool_probe import shares_memory
from sits_dispatcher.dispatcher import Dispatcher
from sits_dispatcher.job import Front
from sits_protos.v1.link_pb2 import Cancel, Catalog, Credits, Hello, LinkMessage

log = structlog.get_logger()


class Fronts:
    """Listener of the Dispatch links."""

    def __init__(self, dispatcher: Dispatcher, shm_dir: str) -> None:
        self._dispatcher, self._shm_dir = dispatcher, shm_dir
        self._fronts: dict[Link, Front] = {}
        self._hellos: dict[Link, Hello] = {}
        self._lock = threading.Lock()
        self.changed: Callable[[], object] = lambda: None

    def __len__(self) -> int:
        return len(self._fronts)

    def hellos(self) -> list[tuple[Link, Hello, Front]]:
        """Link, Hello and state of each linked front."""
        known = list(self._hellos.items())
        return [(link, hello, self._fronts[link]) for link, hello in known]

    def opened(self, link: Link) -> None:
        with self._lock:
            self._fronts[link] = Front(link)
        self.changed()

    def received(self, link: Link, message: bytes) -> None:
        try:
            self._handle(link, self._fronts[link], wire.split(message))
        except (wire.MalformedMessage, DecodeError) as error:
            log.warning("front.malformed", peer=link.peer, error=str(error))
            link.close()

    def closed(self, link: Link, reason: str) -> None:
        with self._lock:
            front = self._fronts.pop(link)
            self._hellos.pop(link, None)
        log.info("front.lost", front=front.id, peer=link.peer, reason=reason)
        self._dispatcher.front_lost(front)
        self.changed()

    def tell(self, catalog: Catalog, credits_of: Callable[[Front], Credits]) -> None:
        """Send models and credits to every front."""
        models = LinkMessage(catalog=catalog).SerializeToString()
        for link, front in list(self._fronts.items()):
            link.write(models)
            link.write(LinkMessage(credits=credits_of(front)).SerializeToString())

    def _handle(self, link: Link, front: Front, message: wire.Split) -> None:
        match message.kind:
            case wire.BATCH:
                self._dispatcher.batch(front, message.head, message.body)
            case wire.CANCEL:
                self._dispatcher.cancel(front, Cancel.FromString(message.head))
            case wire.RELEASE:
                self._dispatcher.release_slots(message.head)
            case wire.HELLO:
                self._greeted(link, front, Hello.FromString(message.head))
            case _:
                log.warning("front.unexpected", peer=link.peer, kind=message.kind)

    def _greeted(self, link: Link, front: Front, hello: Hello) -> None:
        front.id, front.host, front.numa_node = hello.id, hello.host, hello.numa_node
        front.shares_memory = shares_memory(self._shm_dir, hello.shm_probe, hello.shm_nonce)
        self._hellos[link] = hello
        log.info("front.linked", front=hello.id, peer=link.peer)
        self.changed()
