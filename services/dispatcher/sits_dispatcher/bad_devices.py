"""Executors whose device must not carry work, as topology services say."""

from collections.abc import Iterable

from sits_protos.v1.link_pb2 import Hello
from sits_protos.v1.topology_pb2 import DEVICE_HEALTH_BAD, TopologySnapshot


def on_bad_devices(executors: Iterable[Hello], snapshots: Iterable[TopologySnapshot]) -> list[str]:
    """Their ids. A snapshot that grew old still counts: a card does not mend by silence."""
    bad = {
        (snapshot.host, device.id)
        for snapshot in snapshots
        for device in snapshot.devices
        if device.health == DEVICE_HEALTH_BAD
    }
    return [hello.id for hello in executors if (hello.host, hello.device) in bad]
