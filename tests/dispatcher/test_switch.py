"""A switched strategy is followed by every dispatcher, through what they share (D3)."""

import pytest

from sits_core.metrics import ProcessRegistry
from sits_core.settings import load
from sits_core.testing import MemoryRegistry
from sits_core.tracing import Tracer
from sits_dispatcher.app import build_mesh, hello
from sits_dispatcher.mesh import Mesh
from sits_dispatcher.settings import DispatcherSettings


def dispatcher(shared: MemoryRegistry) -> Mesh:
    settings = load(DispatcherSettings, "dispatcher", {})
    made = build_mesh(settings, hello(settings), Tracer("dispatcher", 100, 0.0), ProcessRegistry())
    made.registry = shared
    return made


@pytest.fixture
def shared() -> MemoryRegistry:
    return MemoryRegistry()


def test_others_follow_for_all_models_and_for_one(shared: MemoryRegistry) -> None:
    one, other = dispatcher(shared), dispatcher(shared)
    assert one.switch("round_robin") == "topo_aware"
    one.switch("random", "m")
    other.poll_registry()
    assert other.dispatcher.placer.default == "round_robin"
    assert dict(other.dispatcher.placer.by_model) == {"m": "random"}


def test_who_comes_later_follows_too(shared: MemoryRegistry) -> None:
    dispatcher(shared).switch("least_loaded")
    late = dispatcher(shared)
    late.poll_registry()
    assert late.dispatcher.placer.default == "least_loaded"


def test_a_switch_made_while_redis_is_away_is_not_undone_by_an_old_value(
    shared: MemoryRegistry,
) -> None:
    one = dispatcher(shared)
    one.switch("least_loaded")
    one.poll_registry()
    shared.down = True
    one.switch("random")
    shared.down = False
    one.poll_registry()
    assert one.dispatcher.placer.default == "random"


def test_a_switch_made_while_redis_is_away_reaches_the_others_when_it_is_back(
    shared: MemoryRegistry,
) -> None:
    one, other = dispatcher(shared), dispatcher(shared)
    shared.down = True
    one.switch("least_loaded")
    one.switch("random")
    one.switch("fifo", "m")
    shared.down = False
    one.poll_registry()
    other.poll_registry()
    assert other.dispatcher.placer.default == "random"
    assert dict(other.dispatcher.placer.by_model) == {"m": "fifo"}


def test_what_was_shared_once_is_not_shared_again(shared: MemoryRegistry) -> None:
    """The next choice may be another dispatcher's."""
    one, other = dispatcher(shared), dispatcher(shared)
    one.switch("random")
    other.switch("fifo")
    one.poll_registry()
    assert one.dispatcher.placer.default == "fifo"
    assert shared.strategies() == {"": "fifo"}


def test_a_strategy_that_only_others_have_is_left_alone(shared: MemoryRegistry) -> None:
    shared.set_strategy("", "of a package that is not here")
    one = dispatcher(shared)
    one.poll_registry()
    assert one.dispatcher.placer.default == "topo_aware"
