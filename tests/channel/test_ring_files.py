"""Rules of agreeing on rings: what is offered is taken, or refused with a reason; no file stays."""

import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sits_channel import ring
from sits_channel.pool import PayloadPool
from sits_channel.pool_files import create, remove_orphans
from sits_channel.ring_files import METADATA_KEY, Rings, open_rings
from sits_core.identity import host_id
from sits_core.settings import Settings
from sits_protos.v1.link_pb2 import RingAnswer, RingOffer

pytestmark = pytest.mark.skipif(not ring.available(), reason="the C core is not compiled")

LIMIT = 1 << 20


def rings(directory: str, process: str = "client") -> Rings:
    return Rings(directory, "prod", process, LIMIT, 4096)


def refusal(directory: str, offer: bytes) -> str:
    """Why a server refuses `offer`; empty when it does not."""
    end, answer = rings(directory, "server").accept([(METADATA_KEY, offer)])
    parsed = RingAnswer.FromString(answer[0][1])
    assert parsed.accepted == (end is not None) == (parsed.reason == "")
    return parsed.reason


def changed(offer: bytes, change: Callable[[RingOffer], object]) -> bytes:
    parsed = RingOffer.FromString(offer)
    change(parsed)
    return parsed.SerializeToString()


def test_both_ends_exchange_messages_and_the_file_is_gone(shm: str) -> None:
    offered = rings(shm).offer()
    assert offered is not None
    server, answer = rings(shm, "server").accept([("other", "x"), offered.metadata])
    client = offered.settle(answer)
    assert os.listdir(shm) == []
    assert server is not None
    assert client is not None
    assert client.writer.try_write(b"ping")
    assert server.reader.read() == [b"ping"]
    assert server.writer.try_write(b"pong")
    assert client.reader.read() == [b"pong"]


def test_ends_that_are_dropped_leave_no_mapping(shm: str) -> None:
    for _ in range(50):
        offered = rings(shm).offer()
        assert offered is not None
        server, answer = rings(shm, "server").accept([offered.metadata])
        client = offered.settle(answer)
        del offered, server, client
    assert shm not in Path("/proc/self/maps").read_text()
    assert not any(shm in os.readlink(f"/proc/self/fd/{fd}") for fd in open_descriptors())


def open_descriptors() -> list[str]:
    return [fd for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]


@pytest.mark.parametrize(
    "answer",
    [(), [("other", b"x")], [(METADATA_KEY, b"\xff\xff")], [(METADATA_KEY, "text")]],
    ids=["none", "of an older peer", "garbage", "text"],
)
def test_without_a_good_answer_there_is_no_ring_and_no_file(
    shm: str, answer: list[tuple[str, str | bytes]]
) -> None:
    offered = rings(shm).offer()
    assert offered is not None
    assert offered.settle(answer) is None
    assert os.listdir(shm) == []


def test_a_peer_that_offers_nothing_gets_no_answer(shm: str) -> None:
    assert rings(shm).accept([("authorization", "x")]) == (None, ())


def test_a_server_with_another_directory_refuses(shm: str, tmp_path: Path) -> None:
    offered = rings(shm).offer()
    assert offered is not None
    assert refusal(str(tmp_path), offered.metadata[1]) == "memory is not shared"
    offered.withdraw()


def test_a_file_of_the_same_name_elsewhere_is_not_taken_for_the_ring(
    shm: str, tmp_path: Path
) -> None:
    offered, other = rings(shm).offer(), tmp_path / "other"
    assert offered is not None
    other.mkdir()
    size_bytes = ring.file_bytes(4096)
    name = RingOffer.FromString(offered.metadata[1]).file
    process = name.removeprefix("sits-prod-").removesuffix(".ring")
    file = create(str(other), "prod", process, "ring", size_bytes)
    assert refusal(str(other), offered.metadata[1]) == "memory is not shared"
    file.remove()
    offered.withdraw()


def test_offers_that_cannot_be_are_refused_with_a_reason(shm: str) -> None:
    offered = rings(shm).offer()
    assert offered is not None
    good = offered.metadata[1]
    for change, why in (
        (lambda o: setattr(o, "layout", 2), "expected ring layout 1, got 2"),
        (lambda o: setattr(o, "host", "elsewhere"), "another host"),
        (lambda o: setattr(o, "capacity", 8192), "is no ring of 8192"),
        (lambda o: setattr(o, "capacity", 2**64 - 1), "is no ring of"),
        (lambda o: setattr(o, "capacity", 0), "is no ring of 0"),
        (lambda o: setattr(o, "file", "../" + o.file), "not shared"),
        (lambda o: setattr(o, "file", "/etc/passwd.ring"), "not shared"),
        (lambda o: setattr(o, "file", ""), "expected a file"),
        (lambda o: setattr(o, "nonce", b""), "not shared"),
    ):
        assert why in refusal(shm, changed(good, change))
    assert refusal(shm, good) == ""
    offered.withdraw()


def test_nobody_is_led_to_write_into_a_pool(shm: str) -> None:
    with PayloadPool(shm, "prod", "victim", 2 * 8192 - 4096) as pool:
        size_bytes = os.stat(Path(shm, pool.name)).st_size
        assert size_bytes == ring.file_bytes(4096) - 4096
        nonce = Path(shm, pool.name).read_bytes()[:92]
        offer = RingOffer(
            layout=ring.LAYOUT, file=pool.name, nonce=nonce, capacity=4096, host=host_id()
        )
        assert "expected a file *.ring" in refusal(shm, offer.SerializeToString())


def test_random_offers_and_random_files_never_crash(shm: str) -> None:
    rng = random.Random(4)
    for _ in range(10_000):
        assert refusal(shm, rng.randbytes(rng.randrange(1, 60)))


def test_a_directory_without_room_means_no_ring(shm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "sits_channel.ring_files.free_bytes", lambda _: 2 * ring.file_bytes(4096) - 1
    )
    assert rings(shm).offer() is None
    assert rings("/nowhere").offer() is None
    assert os.listdir(shm) == []


def test_a_file_left_by_a_killed_process_goes_with_the_next_start(shm: str) -> None:
    offered = rings(shm).offer()
    assert offered is not None
    assert remove_orphans(shm, "prod") == 0
    os.close(offered._file.fd)  # the mapping holds the lock as long as it lives
    kept = offered._file.name
    del offered
    settings = Settings(shm_dir=shm, redis_prefix="prod")
    assert os.listdir(shm) == [kept]
    assert open_rings(settings, "next") == replace(
        rings(shm, "next"), capacity=ring.CAPACITY_BYTES, max_message_bytes=256 << 20
    )
    assert os.listdir(shm) == []


def test_forced_to_grpc_there_are_no_rings(shm: str) -> None:
    assert open_rings(Settings(shm_dir=shm, force_grpc_links=True), "p") is None
    assert open_rings(Settings(shm_dir="/nowhere"), "p") is None
