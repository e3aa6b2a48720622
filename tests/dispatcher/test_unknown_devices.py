"""An executor on a device that topology does not know is named in the log, once (NVM-04)."""

from structlog.testing import capture_logs

from sits_dispatcher.unknown_devices import UnknownDevices
from sits_protos.v1.link_pb2 import Hello
from sits_protos.v1.topology_pb2 import Device, TopologySnapshot

SNAPSHOTS = [TopologySnapshot(host="h", devices=[Device(id="cpu:0"), Device(id="GPU-1")])]


def warnings(unknown: UnknownDevices, *executors: Hello) -> list[tuple[str, str]]:
    with capture_logs() as lines:
        unknown.look(executors, SNAPSHOTS)
    return [(line["executor"], line["device"]) for line in lines]


def test_each_is_named_once() -> None:
    unknown = UnknownDevices()
    stranger = Hello(id="e2", host="h", device="GPU-2")
    assert warnings(unknown, Hello(id="e1", host="h", device="GPU-1"), stranger) == [
        ("e2", "GPU-2")
    ]
    assert warnings(unknown, stranger) == []


def test_one_that_left_and_came_back_is_named_again() -> None:
    unknown = UnknownDevices()
    stranger = Hello(id="e2", host="h", device="GPU-2")
    assert warnings(unknown, stranger)
    assert warnings(unknown) == []
    assert warnings(unknown, stranger)


def test_of_a_host_without_a_snapshot_nothing_is_said() -> None:
    elsewhere = Hello(id="e1", host="elsewhere", device="GPU-9")
    assert warnings(UnknownDevices(), elsewhere, Hello(id="e2", host="h")) == []
