"""The registry of shared-memory regions that clients offer for their inputs and outputs."""

import os
import stat
import threading

from sits_core.errors import (
    AlreadyExists,
    Internal,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unimplemented,
)  # fmt: skip
from sits_preprocess.region import Borrowed, Region
from sits_protos.oip import grpc_service_pb2 as pb

MAX_REGIONS = 512
"""Each holds an open file; half of the usual limit of 1,024 stays for connections."""

MAX_NAME_BYTES = 255

DISABLED = (
    "Client shared memory is disabled. Start the server with "
    "SITS_PREPROCESS_ALLOW_CLIENT_SHM=true to enable."
)
SAME_HOST = "client and server must share a host and an IPC namespace"


class Regions:
    """All registered regions. Names are shared by both kinds. Safe from any thread.

    `enabled` False = every call is UNIMPLEMENTED. `forbidden_prefixes`: files in `shm_dir`
    that are the server's own. `max_read_bytes` bounds one input read from a region.
    """

    def __init__(
        self,
        enabled: bool,
        shm_dir: str = "/dev/shm",  # noqa: S108 - this is where shared memory lives
        forbidden_prefixes: tuple[str, ...] = ("sits-",),
        *,
        max_read_bytes: int = 256 << 20,
        max_regions: int = MAX_REGIONS,
    ) -> None:
        self.enabled = enabled
        self._shm_dir, self._forbidden_prefixes = shm_dir, forbidden_prefixes
        self._max_read_bytes, self._max_regions = max_read_bytes, max_regions
        self._regions: dict[str, Region] = {}
        self._lock = threading.Lock()

    def borrow(self, name: str, offset: int, byte_size: int) -> Borrowed:
        """A range of a registered region, to read an input from or write an output to."""
        self._check_enabled()
        with self._lock:
            region = self._regions.get(name)
            if region is None:
                raise NotFound(f"Unable to find shared memory region: '{name}'")
            _check_range(region, offset, byte_size)
            region.hold()
        return Borrowed(region, offset, byte_size, self._max_read_bytes)

    def register_system(
        self, request: pb.SystemSharedMemoryRegisterRequest
    ) -> pb.SystemSharedMemoryRegisterResponse:
        self._check_enabled()
        _check_name(request.name)
        file_name = self._file_name(request.name, request.key)
        with self._lock:
            self._check_room(request.name)
            fd = self._open(request.key, file_name)
            try:
                _check_fits(request, os.fstat(fd).st_size)
            except InvalidArgument:
                os.close(fd)
                raise
            self._regions[request.name] = Region(
                request.name, request.key, request.offset, request.byte_size, fd
            )
        return pb.SystemSharedMemoryRegisterResponse()

    def unregister_system(
        self, request: pb.SystemSharedMemoryUnregisterRequest
    ) -> pb.SystemSharedMemoryUnregisterResponse:
        """An empty name means all, an unknown one nothing. Borrowed ranges stay usable."""
        self._check_enabled()
        with self._lock:
            names = [request.name] if request.name else list(self._regions)
            gone = [self._regions.pop(name) for name in names if name in self._regions]
        for region in gone:
            region.let_go()
        return pb.SystemSharedMemoryUnregisterResponse()

    def system_status(
        self, request: pb.SystemSharedMemoryStatusRequest
    ) -> pb.SystemSharedMemoryStatusResponse:
        self._check_enabled()
        with self._lock:
            if request.name and request.name not in self._regions:
                raise NotFound(f"Unable to find system shared memory region: '{request.name}'")
            chosen = [r for r in self._regions.values() if request.name in ("", r.name)]
        status = pb.SystemSharedMemoryStatusResponse.RegionStatus
        return pb.SystemSharedMemoryStatusResponse(
            regions={
                r.name: status(name=r.name, key=r.key, offset=r.offset, byte_size=r.byte_size)
                for r in chosen
            }
        )

    def register_cuda(
        self, request: pb.CudaSharedMemoryRegisterRequest
    ) -> pb.CudaSharedMemoryRegisterResponse:
        """Always refused: the front door runs without GPU."""
        self._check_enabled()
        raise InvalidArgument(
            f"failed to register CUDA shared memory region: '{request.name}', GPUs not supported"
        )

    def unregister_cuda(
        self, _request: pb.CudaSharedMemoryUnregisterRequest
    ) -> pb.CudaSharedMemoryUnregisterResponse:
        """Nothing to do, whatever the name: there are no such regions."""
        self._check_enabled()
        return pb.CudaSharedMemoryUnregisterResponse()

    def cuda_status(
        self, request: pb.CudaSharedMemoryStatusRequest
    ) -> pb.CudaSharedMemoryStatusResponse:
        self._check_enabled()
        if request.name in self._regions:
            raise NotFound(
                f"The region named '{request.name}' is registered as system shared memory, "
                "not CUDA shared memory"
            )
        if request.name:
            raise NotFound(f"Unable to find cuda shared memory region: '{request.name}'")
        return pb.CudaSharedMemoryStatusResponse()

    def close(self) -> None:
        """Forget all regions; files that are still borrowed close with their last use."""
        with self._lock:
            gone = list(self._regions.values())
            self._regions.clear()
        for region in gone:
            region.let_go()

    def _check_enabled(self) -> None:
        if not self.enabled:
            raise Unimplemented(DISABLED)

    def _check_room(self, name: str) -> None:
        if name in self._regions:
            raise AlreadyExists(f"shared memory region '{name}' already in manager")
        if len(self._regions) >= self._max_regions:
            raise ResourceExhausted(
                f"cannot register shared memory region '{name}': expected at most "
                f"{self._max_regions} regions, unregister some first"
            )

    def _file_name(self, name: str, key: str) -> str:
        """`key` as a name in the directory: what `shm_open` would open, and nothing else."""
        file_name = key.removeprefix("/")
        if file_name in ("", ".", "..") or "/" in file_name or not _plain(file_name):
            raise InvalidArgument(
                f"cannot register shared memory region '{name}' with key '{key}': expected a "
                f"name as for shm_open, '/' followed by 1 to {MAX_NAME_BYTES} printable "
                "characters without '/'"
            )
        for prefix in self._forbidden_prefixes:
            if file_name.startswith(prefix):
                raise InvalidArgument(
                    f"cannot register shared memory region '{name}' with key '{key}' as the key "
                    f"contains the reserved prefix '{prefix}'"
                )
        return file_name

    def _open(self, key: str, file_name: str) -> int:
        """Descriptor of a regular file with no other name; a link could lead anywhere."""
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        refusal = Internal(f"Unable to open shared memory region: '{key}' ({SAME_HOST})")
        try:
            fd = os.open(os.path.join(self._shm_dir, file_name), flags)
        except OSError:
            raise refusal from None
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or info.st_nlink > 1:
            os.close(fd)
            raise refusal
        return fd

    def __repr__(self) -> str:
        return f"<Regions {'on' if self.enabled else 'off'} registered={len(self._regions)}>"


def _plain(text: str) -> bool:
    return text.isprintable() and len(text.encode("utf-8", "replace")) <= MAX_NAME_BYTES


def _check_name(name: str) -> None:
    if not name or not _plain(name):
        raise InvalidArgument(
            "failed to register shared memory region: expected a name of 1 to "
            f"{MAX_NAME_BYTES} printable characters, got '{name[:100]}'"
        )


def _check_fits(request: pb.SystemSharedMemoryRegisterRequest, file_bytes: int) -> None:
    if request.byte_size == 0 or request.offset + request.byte_size > file_bytes:
        raise InvalidArgument(
            f"failed to register shared memory region '{request.name}': invalid args: expected "
            f"1 to {max(file_bytes - request.offset, 0)} bytes at offset {request.offset} of "
            f"'{request.key}' with {file_bytes} bytes, got {request.byte_size}"
        )


def _check_range(region: Region, offset: int, byte_size: int) -> None:
    if not 0 <= offset < region.byte_size:
        raise InvalidArgument(
            f"Invalid offset for shared memory region: '{region.name}': expected 0 to "
            f"{region.byte_size - 1}, got {offset}"
        )
    if not 0 <= byte_size <= region.byte_size - offset:
        raise InvalidArgument(
            f"Invalid offset + byte size for shared memory region: '{region.name}': expected at "
            f"most {region.byte_size - offset} bytes at offset {offset}, got {byte_size}"
        )
