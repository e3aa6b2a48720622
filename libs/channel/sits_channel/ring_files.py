"""How two processes get a pair of rings: one makes a file, the other maps it, nothing stays.

The offer and its answer travel as call metadata of the link's gRPC stream.
"""

import mmap
import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

import structlog
from google.protobuf.message import DecodeError

from sits_channel import ring
from sits_channel.pool_files import (
    PoolUnavailable,
    SharedFile,
    create,
    free_bytes,
    open_file,
    read_nonce,
    remove_orphans,
)
from sits_channel.ring import RingEnd
from sits_core.identity import host_id
from sits_core.settings import Settings
from sits_protos.v1.link_pb2 import RingAnswer, RingOffer

log = structlog.get_logger()

METADATA_KEY: Final = "sits-ring-bin"
SUFFIX: Final = ".ring"


Metadata: TypeAlias = Iterable[tuple[str, str | bytes]]


class RingRefused(Exception):
    """An offer that cannot be taken; the text is safe to show to the peer."""


@dataclass(frozen=True, slots=True)
class OfferedRing:
    """A ring that the peer may take. `settle` or `withdraw` it: its file is there until then."""

    metadata: tuple[str, bytes]
    _file: SharedFile
    _end: RingEnd

    def settle(self, answer: Metadata) -> RingEnd | None:
        """Our end, if the peer has its own. `answer`: the initial metadata of the call."""
        self.withdraw()
        try:
            parsed = RingAnswer.FromString(_value(answer))
        except DecodeError:
            parsed = RingAnswer(reason="the answer cannot be read")
        if parsed.reason:
            log.info("link.no_ring", reason=parsed.reason)
        return self._end if parsed.accepted else None

    def withdraw(self) -> None:
        self._file.remove()


@dataclass(frozen=True, slots=True)
class Rings:
    """Makes rings for the links of this process, and takes those that peers offer."""

    directory: str
    deployment: str
    process_id: str
    max_message_bytes: int
    capacity: int = ring.CAPACITY_BYTES

    def offer(self) -> OfferedRing | None:
        """None when memory is short."""
        size_bytes = ring.file_bytes(self.capacity)
        name = f"{self.process_id}-{secrets.token_hex(4)}"
        try:
            self._leave_some(size_bytes)
            file = create(self.directory, self.deployment, name, "ring", size_bytes)
        except PoolUnavailable as error:
            log.warning("link.no_ring", reason=str(error))
            return None
        try:
            memory = mmap.mmap(file.fd, size_bytes)
            end = ring.client_end(memory, self.capacity, self.max_message_bytes)
        except OSError as error:
            file.remove()
            log.warning("link.no_ring", reason=f"cannot map {file.name}: {error.strerror}")
            return None
        offer = RingOffer(
            layout=ring.LAYOUT,
            file=file.name,
            nonce=file.nonce,
            capacity=self.capacity,
            host=host_id(),
        )
        return OfferedRing((METADATA_KEY, offer.SerializeToString()), file, end)

    def accept(self, metadata: Metadata) -> tuple[RingEnd | None, tuple[tuple[str, bytes], ...]]:
        """Our end of what a peer's call offers, and the metadata to answer with."""
        offer = _value(metadata)
        if not offer:
            return None, ()
        try:
            end, answer = self._take(RingOffer.FromString(offer)), RingAnswer(accepted=True)
        except DecodeError:
            end, answer = None, RingAnswer(reason="the offer cannot be read")
        except RingRefused as error:
            end, answer = None, RingAnswer(reason=str(error))
        return end, ((METADATA_KEY, answer.SerializeToString()),)

    def _leave_some(self, size_bytes: int) -> None:
        free = free_bytes(self.directory)
        if free is not None and size_bytes > free // 2:
            raise PoolUnavailable(f"{self.directory} has {free} bytes free")

    def _take(self, offer: RingOffer) -> RingEnd:
        if offer.layout != ring.LAYOUT:
            raise RingRefused(f"expected ring layout {ring.LAYOUT}, got {offer.layout}")
        if offer.host != host_id():
            raise RingRefused("another host")
        # By its name a peer could else have us write into a pool.
        if not offer.file.endswith(SUFFIX):
            raise RingRefused(f"expected a file *{SUFFIX}")
        try:
            memory = self._map(offer)
            return ring.server_end(memory, offer.capacity, self.max_message_bytes)
        except OSError:
            raise RingRefused("memory is not shared") from None
        except (ValueError, OverflowError) as error:
            raise RingRefused(str(error)) from None

    def _map(self, offer: RingOffer) -> mmap.mmap:
        fd = open_file(self.directory, offer.file, os.O_RDWR)
        try:
            if read_nonce(fd) != offer.nonce:
                raise RingRefused("memory is not shared")
            size_bytes = os.fstat(fd).st_size
            if size_bytes != ring.file_bytes(offer.capacity):
                raise RingRefused(f"a file of {size_bytes} bytes is no ring of {offer.capacity}")
            return mmap.mmap(fd, size_bytes)
        finally:
            os.close(fd)


def open_rings(settings: Settings, process_id: str) -> Rings | None:
    """For the links of this process. None = they stay on gRPC streams.

    Removes what dead processes of the deployment left.
    """
    if settings.force_grpc_links or not ring.available():
        return None
    try:
        remove_orphans(settings.shm_dir, settings.redis_prefix)
    except PoolUnavailable as error:
        log.warning("link.no_rings", reason=str(error))
        return None
    return Rings(settings.shm_dir, settings.redis_prefix, process_id, settings.max_message_bytes)


def _value(metadata: Metadata) -> bytes:
    """What stands under our key, empty when nothing does."""
    values = (value for key, value in metadata if key == METADATA_KEY)
    return next((value for value in values if isinstance(value, bytes)), b"")
