"""What an executor grants counts, not what it has: others send there too."""

from collections.abc import Mapping

import pytest

from sits_core.metrics import ProcessRegistry
from sits_core.settings import load
from sits_core.tracing import Tracer
from sits_dispatcher.app import build_mesh, hello
from sits_dispatcher.settings import DispatcherSettings
from sits_dispatcher.testing import Wire
from sits_protos.v1.link_pb2 import (
    Catalog,
    Credit,
    Credits,
    Hello,
    LinkMessage,
    ModelEntry,
    ModelState,
    Role,
)

SLOTS, INSTANCES = 2, 1


class World:
    """A dispatcher, one front, and executors that say what we let them."""

    def __init__(self) -> None:
        settings = load(DispatcherSettings, "dispatcher", {})
        tracer = Tracer("dispatcher", 100, 0.0)
        self.mesh = build_mesh(settings, hello(settings), tracer, ProcessRegistry())
        self.front = Wire()
        self.mesh.fronts.opened(self.front)

    def link(self, name: str) -> Wire:
        link = Wire()
        self.mesh.executors.opened(link)
        self.say(link, LinkMessage(hello=Hello(role=Role.ROLE_EXECUTOR, id=name)))
        return link

    def say(self, link: Wire, message: LinkMessage) -> None:
        self.mesh.executors.received(link, message.SerializeToString())

    def grant(self, link: Wire, **windows: int) -> None:
        told = [Credit(model=name, version="1", window=w) for name, w in windows.items()]
        self.say(link, LinkMessage(credits=Credits(models=told)))

    def announce(self, link: Wire, *models: str) -> None:
        ready = ModelState.MODEL_STATE_READY
        entries = [
            ModelEntry(name=name, version="1", state=ready, slots=SLOTS, instances=INSTANCES)
            for name in models
        ]
        self.say(link, LinkMessage(catalog=Catalog(models=entries)))

    def capacity(self, model: str = "m") -> tuple[int, int]:
        return self.mesh.dispatcher.table.capacity(f"{model}/1")[:2]

    def told(self) -> Mapping[str, tuple[int, int]]:
        """What the front heard last."""
        last = [m.credits for m in self.front.sent if m.HasField("credits")][-1]
        return {credit.model: (credit.window, credit.instances) for credit in last.models}


@pytest.fixture
def world() -> World:
    return World()


def test_an_executor_that_grants_nothing_is_taken_whole(world: World) -> None:
    """As one of a version before credits does."""
    world.announce(world.link("e"), "m")
    assert world.capacity() == (SLOTS, INSTANCES)


def test_of_two_executors_shared_with_another_dispatcher_one_is_ours(world: World) -> None:
    for name in ("e", "f"):
        link = world.link(name)
        world.grant(link, m=1)
        world.announce(link, "m")
    assert world.capacity() == (2, 1)
    assert world.told() == {"m": (2, 1)}


def test_fronts_hear_of_a_grant_with_the_next_tick_and_once(world: World) -> None:
    links = [world.link(name) for name in ("e", "f")]
    for link in links:
        world.announce(link, "m")
    heard = len(world.front.raw)
    for link in links:
        world.grant(link, m=1)
    assert len(world.front.raw) == heard
    world.mesh.tick()
    assert world.told() == {"m": (2, 1)}
    heard = len(world.front.raw)
    for link in links:
        world.grant(link, m=1)
    world.mesh.tick()
    assert len(world.front.raw) == heard


def test_a_grant_before_the_model_holds_once_it_is_there(world: World) -> None:
    link = world.link("e")
    world.announce(link, "m")
    world.grant(link, m=1, n=1)
    world.announce(link, "m", "n")
    assert world.capacity("n") == (1, 1)


def test_a_grant_to_an_executor_that_drains_changes_nothing(world: World) -> None:
    link = world.link("e")
    world.announce(link, "m")
    world.say(link, LinkMessage(hello=Hello(role=Role.ROLE_EXECUTOR, id="e", draining=True)))
    world.grant(link, m=2)
    assert world.capacity() == (0, 0)
