"""What topology says is BAD gets no work, while others can have it (T4)."""

from sits_dispatcher.bad_devices import on_bad_devices
from sits_dispatcher.testing import World
from sits_protos.v1.link_pb2 import Hello
from sits_protos.v1.topology_pb2 import (
    DEVICE_HEALTH_BAD,
    DEVICE_HEALTH_DEGRADED,
    DEVICE_HEALTH_GOOD,
    Device,
    TopologySnapshot,
)

HERE = TopologySnapshot(
    host="here",
    devices=[
        Device(id="GPU-1", health=DEVICE_HEALTH_BAD),
        Device(id="GPU-2", health=DEVICE_HEALTH_DEGRADED),
        Device(id="GPU-3", health=DEVICE_HEALTH_GOOD),
    ],
)


def test_only_executors_on_bad_devices_of_their_own_host_are_named() -> None:
    executors = [Hello(id=f"e{n}", host="here", device=f"GPU-{n}") for n in (1, 2, 3)]
    executors += [Hello(id="other", host="there", device="GPU-1"), Hello(id="none", host="here")]
    assert on_bad_devices(executors, [HERE]) == ["e1"]
    assert on_bad_devices(executors, []) == []


def served_by(world: World, requests: int = 6) -> set[str]:
    """Who has work after so many batches."""
    for number in range(requests):
        world.send(number)
    return {name for name in world.executors if world.open(name)}


def test_an_executor_on_a_bad_device_gets_nothing_while_another_can() -> None:
    world = World("a", "b", slots=9)
    world.dispatcher.guard.on_bad_devices(["a"])
    assert served_by(world) == {"b"}


def test_it_gets_work_again_when_its_device_is_good_again() -> None:
    world = World("a", "b", slots=9)
    world.dispatcher.guard.on_bad_devices(["a"])
    world.dispatcher.guard.on_bad_devices([])
    assert served_by(world) == {"a", "b"}


def test_when_all_that_serve_a_model_are_on_bad_devices_work_still_flows() -> None:
    world = World("a", slots=9)
    world.dispatcher.guard.on_bad_devices(["a"])
    assert served_by(world) == {"a"}
