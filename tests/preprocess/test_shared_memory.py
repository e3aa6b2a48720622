"""Rules of client shared memory: off unless wanted, bounded, and never able to harm the server."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sits_core.errors import (
    AlreadyExists,
    Internal,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unimplemented,
)
from sits_preprocess.shared_memory import Regions
from sits_protos.oip import grpc_service_pb2 as pb

SIZE = 64


@pytest.fixture
def shm(tmp_path: Path) -> Path:
    directory = tmp_path / "shm"
    directory.mkdir()
    (directory / "in").write_bytes(bytes(range(SIZE)))
    return directory


@pytest.fixture
def regions(shm: Path) -> Iterator[Regions]:
    regions = Regions(True, str(shm), max_read_bytes=1 << 20)
    yield regions
    regions.close()


def register(
    regions: Regions, name: str = "r", key: str = "/in", offset: int = 0, byte_size: int = SIZE
) -> None:
    regions.register_system(
        pb.SystemSharedMemoryRegisterRequest(name=name, key=key, offset=offset, byte_size=byte_size)
    )


def unregister(regions: Regions, name: str = "") -> None:
    regions.unregister_system(pb.SystemSharedMemoryUnregisterRequest(name=name))


def names(regions: Regions) -> set[str]:
    return set(regions.system_status(pb.SystemSharedMemoryStatusRequest()).regions)


def open_files(directory: Path) -> int:
    """Files in `directory` that this process holds open."""
    count = 0
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            count += os.readlink(link).startswith(str(directory))
    return count


# Switched off


def test_every_call_is_unimplemented_unless_switched_on(shm: Path) -> None:
    off = Regions(False, str(shm))
    calls = [
        lambda: register(off),
        lambda: unregister(off),
        lambda: names(off),
        lambda: off.register_cuda(pb.CudaSharedMemoryRegisterRequest(name="r")),
        lambda: off.unregister_cuda(pb.CudaSharedMemoryUnregisterRequest()),
        lambda: off.cuda_status(pb.CudaSharedMemoryStatusRequest()),
        lambda: off.borrow("r", 0, 1),
    ]
    for call in calls:
        with pytest.raises(Unimplemented, match=r"^Client shared memory is disabled\. Start the"):
            call()
    assert open_files(shm) == 0


# Registering


def test_a_region_is_listed_as_it_was_registered(regions: Regions) -> None:
    register(regions, offset=8, byte_size=16)
    (region,) = regions.system_status(pb.SystemSharedMemoryStatusRequest(name="r")).regions.values()
    assert (region.name, region.key, region.offset, region.byte_size) == ("r", "/in", 8, 16)


def test_a_key_works_with_and_without_its_slash(regions: Regions) -> None:
    register(regions, "a", "/in")
    register(regions, "b", "in")
    assert names(regions) == {"a", "b"}


def test_a_name_is_taken_until_unregistered(regions: Regions) -> None:
    register(regions)
    with pytest.raises(AlreadyExists, match=r"^shared memory region 'r' already in manager$"):
        register(regions)
    unregister(regions, "r")
    register(regions)


def test_a_missing_key_says_who_must_share_what(regions: Regions) -> None:
    with pytest.raises(Internal, match=r"^Unable to open shared memory region: '/none'") as caught:
        register(regions, key="/none")
    assert "share a host and an IPC namespace" in str(caught.value)


@pytest.mark.parametrize(
    ("offset", "byte_size"),
    [
        (0, SIZE + 1), (SIZE, 1), (1, SIZE), (0, 0), (SIZE + 1, 1),
        (2**63, 2**63), (2**64 - 1, 1), (1, 2**64 - 1), (0, 2**50),
    ],
)  # fmt: skip
def test_a_region_beyond_its_file_is_refused(
    regions: Regions, shm: Path, offset: int, byte_size: int
) -> None:
    with pytest.raises(InvalidArgument, match=r"^failed to register shared memory region 'r'"):
        register(regions, offset=offset, byte_size=byte_size)
    assert names(regions) == set()
    assert open_files(shm) == 0


@pytest.mark.parametrize("key", ["/sits-pool-7", "sits-pool-7", "/sits-"])
def test_the_servers_own_files_cannot_be_registered(regions: Regions, shm: Path, key: str) -> None:
    (shm / "sits-pool-7").write_bytes(bytes(SIZE))
    expected = f"with key '{key}' as the key contains the reserved prefix 'sits-'"
    with pytest.raises(InvalidArgument, match=expected):
        register(regions, key=key)


@pytest.mark.parametrize(
    "key",
    [
        "", "/", ".", "..", "/.", "/..", "../secret", "/../secret", "a/b", "//in", "/in/", "in\0",
        "/sub/../in", "in\n", "x" * 256, "/" + "é" * 128, "/sub\\..\\in\x7f",
    ],
)  # fmt: skip
def test_a_key_is_a_plain_name_in_the_directory(regions: Regions, shm: Path, key: str) -> None:
    (shm.parent / "secret").write_bytes(bytes(SIZE))
    (shm / "sub").mkdir()
    with pytest.raises(InvalidArgument, match=r"expected a name as for shm_open"):
        register(regions, key=key)


def test_links_and_special_files_are_not_followed(regions: Regions, shm: Path) -> None:
    secret = shm.parent / "secret"
    secret.write_bytes(bytes(SIZE))
    (shm / "sits-pool").write_bytes(bytes(SIZE))
    (shm / "symbolic").symlink_to(secret)
    (shm / "hard").hardlink_to(shm / "sits-pool")
    (shm / "folder").mkdir()
    os.mkfifo(shm / "pipe")
    for key in ("symbolic", "hard", "folder", "pipe"):
        with pytest.raises(Internal, match=f"^Unable to open shared memory region: '{key}'"):
            register(regions, key=key)
    assert open_files(shm) == 0


@pytest.mark.parametrize("name", ["", "a\0b", "a\nb", "n" * 256])
def test_a_region_has_a_printable_name(regions: Regions, name: str) -> None:
    with pytest.raises(InvalidArgument, match=r"expected a name of 1 to 255 printable characters"):
        register(regions, name=name)


def test_the_number_of_regions_is_bounded(shm: Path) -> None:
    regions = Regions(True, str(shm), max_regions=2)
    register(regions, "a")
    register(regions, "b")
    with pytest.raises(ResourceExhausted, match=r"at most 2 regions"):
        register(regions, "c")
    unregister(regions, "a")
    register(regions, "c")
    regions.close()


# Status and unregistering


def test_status_of_an_unknown_region_is_not_found(regions: Regions) -> None:
    with pytest.raises(NotFound, match=r"^Unable to find system shared memory region: 'x'$"):
        regions.system_status(pb.SystemSharedMemoryStatusRequest(name="x"))


def test_an_unknown_region_unregisters_without_error(regions: Regions) -> None:
    register(regions)
    unregister(regions, "x")
    assert names(regions) == {"r"}


def test_an_empty_name_unregisters_all(regions: Regions, shm: Path) -> None:
    register(regions, "a")
    register(regions, "b")
    unregister(regions)
    assert names(regions) == set()
    assert open_files(shm) == 0


def test_unregistering_leaves_the_clients_file(regions: Regions, shm: Path) -> None:
    register(regions)
    unregister(regions)
    assert (shm / "in").read_bytes() == bytes(range(SIZE))


# Borrowing


def test_a_borrowed_range_reads_the_clients_bytes(regions: Regions) -> None:
    register(regions, offset=8, byte_size=32)
    with regions.borrow("r", 4, 3) as borrowed:
        assert bytes(borrowed.view) == bytes([12, 13, 14])
        assert borrowed.view.readonly


def test_a_result_lands_in_the_range_and_nowhere_else(regions: Regions, shm: Path) -> None:
    register(regions, offset=8, byte_size=32)
    with regions.borrow("r", 4, 8) as borrowed:
        borrowed.write(b"abc")
    assert (shm / "in").read_bytes() == bytes(range(12)) + b"abc" + bytes(range(15, SIZE))


def test_a_result_larger_than_its_range_is_refused(regions: Regions, shm: Path) -> None:
    register(regions)
    with (
        regions.borrow("r", 0, 2) as borrowed,
        pytest.raises(Internal, match=r"should be at least 3 bytes, got 2"),
    ):
        borrowed.write(b"abc")
    assert (shm / "in").read_bytes() == bytes(range(SIZE))


def test_an_unknown_region_cannot_be_borrowed(regions: Regions) -> None:
    with pytest.raises(NotFound, match=r"^Unable to find shared memory region: 'x'$"):
        regions.borrow("x", 0, 1)


@pytest.mark.parametrize(
    ("offset", "byte_size", "text"),
    [
        (-1, 1, "Invalid offset for shared memory region: 'r'"),
        (SIZE, 0, "Invalid offset for shared memory region: 'r'"),
        (2**63 - 1, 1, "Invalid offset for shared memory region: 'r'"),
        (0, SIZE + 1, r"Invalid offset \+ byte size for shared memory region: 'r'"),
        (1, 2**63 - 1, r"Invalid offset \+ byte size for shared memory region: 'r'"),
        (0, -1, r"Invalid offset \+ byte size for shared memory region: 'r'"),
        (0, 2**50, r"Invalid offset \+ byte size for shared memory region: 'r'"),
    ],
)
def test_a_range_lies_inside_its_region(
    regions: Regions, offset: int, byte_size: int, text: str
) -> None:
    register(regions)
    with pytest.raises(InvalidArgument, match=f"^{text}"):
        regions.borrow("r", offset, byte_size)


def test_a_region_may_be_huge_but_not_one_input_read_from_it(regions: Regions, shm: Path) -> None:
    with (shm / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    register(regions, key="/sparse", byte_size=1 << 40)
    with (
        regions.borrow("r", 0, 1 << 40) as borrowed,
        pytest.raises(
            InvalidArgument, match=r"expected at most 1048576 bytes .* got 1099511627776"
        ),
    ):
        _ = borrowed.view
    with regions.borrow("r", (1 << 40) - 5, 5) as borrowed:
        assert bytes(borrowed.view) == bytes(5)


def test_what_was_checked_does_not_change_under_the_reader(regions: Regions, shm: Path) -> None:
    register(regions)
    with regions.borrow("r", 0, 4) as borrowed:
        before = bytes(borrowed.view)
        (shm / "in").write_bytes(b"\xff" * SIZE)
        assert bytes(borrowed.view) == before


def test_a_file_shortened_by_its_owner_is_an_error_not_a_crash(regions: Regions, shm: Path) -> None:
    register(regions)
    os.truncate(shm / "in", 10)
    with (
        regions.borrow("r", 4, 16) as borrowed,
        pytest.raises(InvalidArgument, match=r"shortened .* expected 16 bytes at offset 4, got 6"),
    ):
        _ = borrowed.view
    with regions.borrow("r", 4, 16) as borrowed, pytest.raises(InvalidArgument, match=r"shortened"):
        borrowed.write(bytes(16))
    assert (shm / "in").stat().st_size == 10
    with regions.borrow("r", 0, 8) as borrowed:
        assert bytes(borrowed.view) == bytes(range(8))


def test_a_range_in_use_outlives_its_registration(regions: Regions, shm: Path) -> None:
    register(regions)
    borrowed = regions.borrow("r", 0, 4)
    unregister(regions, "r")
    (shm / "other").write_bytes(b"new!")
    register(regions, "r", "/other", byte_size=4)
    assert bytes(borrowed.view) == bytes(range(4))
    borrowed.write(b"late")
    assert (shm / "in").read_bytes()[:4] == b"late"
    assert open_files(shm) == 2
    borrowed.release()
    assert open_files(shm) == 1
    with regions.borrow("r", 0, 4) as again:
        assert bytes(again.view) == b"new!"


def test_release_may_be_repeated(regions: Regions, shm: Path) -> None:
    register(regions)
    first, second = regions.borrow("r", 0, 4), regions.borrow("r", 0, 4)
    for _ in range(3):
        first.release()
    unregister(regions)
    assert bytes(second.view) == bytes(range(4))
    second.release()
    assert open_files(shm) == 0


def test_a_released_range_is_not_written_any_more(regions: Regions) -> None:
    register(regions)
    borrowed = regions.borrow("r", 0, 4)
    borrowed.release()
    with pytest.raises(RuntimeError, match=r"after its release"):
        borrowed.write(b"late")


def test_registering_and_borrowing_from_many_threads_leaks_nothing(
    regions: Regions, shm: Path
) -> None:
    seen: set[bytes] = set()

    def client(number: int) -> None:
        for _ in range(100):
            name = f"r{number % 2}"
            with suppress(AlreadyExists):
                register(regions, name)
            with suppress(NotFound), regions.borrow(name, 0, 4) as borrowed:
                seen.add(bytes(borrowed.view))
            unregister(regions, name)

    threads = [threading.Thread(target=client, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {bytes(range(4))}
    assert open_files(shm) == 0


# CUDA


def test_cuda_regions_are_refused_without_a_gpu(regions: Regions) -> None:
    expected = "^failed to register CUDA shared memory region: 'x', GPUs not supported$"
    with pytest.raises(InvalidArgument, match=expected):
        regions.register_cuda(
            pb.CudaSharedMemoryRegisterRequest(name="x", raw_handle=bytes(64), byte_size=8)
        )


def test_cuda_calls_leave_system_regions_alone(regions: Regions) -> None:
    register(regions)
    for name in ("", "r", "x"):
        regions.unregister_cuda(pb.CudaSharedMemoryUnregisterRequest(name=name))
    assert names(regions) == {"r"}
    assert not regions.cuda_status(pb.CudaSharedMemoryStatusRequest()).regions


def test_both_kinds_share_one_namespace(regions: Regions) -> None:
    register(regions)
    with pytest.raises(NotFound, match=r"'r' is registered as system shared memory, not CUDA"):
        regions.cuda_status(pb.CudaSharedMemoryStatusRequest(name="r"))
    with pytest.raises(NotFound, match=r"^Unable to find cuda shared memory region: 'x'$"):
        regions.cuda_status(pb.CudaSharedMemoryStatusRequest(name="x"))


# The client's segments are the client's

ATTACH = """
import os, signal, sys
from sits_preprocess.shared_memory import Regions
from sits_protos.oip import grpc_service_pb2 as pb
regions = Regions(True)
request = pb.SystemSharedMemoryRegisterRequest(name="r", key=sys.argv[1], byte_size=8)
regions.register_system(request)
borrowed = regions.borrow("r", 0, 8)
print(bytes(borrowed.view).hex(), flush=True)
if sys.argv[2] == "exit": sys.exit(0)
if sys.argv[2] == "raise": raise RuntimeError("on purpose")
os.kill(os.getpid(), getattr(signal, sys.argv[2]))
"""


@pytest.mark.parametrize("end", ["exit", "raise", "SIGTERM", "SIGKILL"])
def test_a_clients_segment_survives_every_end_of_the_server(end: str) -> None:
    key = f"test-client-segment-{os.getpid()}-{end}"
    path = Path("/dev/shm") / key  # noqa: S108 - this is where shared memory lives
    path.write_bytes(b"segment!")
    try:
        done = subprocess.run(
            [sys.executable, "-c", ATTACH, "/" + key, end],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert bytes.fromhex(done.stdout) == b"segment!"
        assert "resource_tracker" not in done.stderr
        assert path.read_bytes() == b"segment!"
    finally:
        path.unlink()


def test_a_segment_made_by_tritonclient_is_read_and_written() -> None:
    shared_memory = pytest.importorskip("tritonclient.utils.shared_memory")
    import numpy as np

    key = f"/test-triton-segment-{os.getpid()}"
    handle = shared_memory.create_shared_memory_region("r", key, 16)
    regions = Regions(True)
    try:
        shared_memory.set_shared_memory_region(handle, [np.arange(4, dtype=np.int32)])
        register(regions, key=key, byte_size=16)
        with regions.borrow("r", 4, 12) as borrowed:
            assert np.frombuffer(borrowed.view, np.int32).tolist() == [1, 2, 3]
            borrowed.write(np.array([7, 8, 9], np.int32).data)
        got = shared_memory.get_contents_as_numpy(handle, np.int32, [4])
        assert got.tolist() == [0, 7, 8, 9]
        del got
    finally:
        regions.close()
        shared_memory.destroy_shared_memory_region(handle)
