"""Which models the engine takes requests for, by what dispatchers announce."""

import pytest

from sits_core.errors import (
    NotFound,
    Unavailable,
)
from sits_core.testing import wait_until
from sits_preprocess.testing_engine import FakeLink, World
from sits_protos.v1.link_pb2 import (
    Catalog,
    Credit,
    Credits,
    Hello,
    LinkMessage,
    ModelEntry,
    ModelState,
)


def test_a_restarted_dispatcher_that_knows_no_executor_yet_hides_no_model(world: World) -> None:
    link = world.link()
    world.engine.closed(link, "killed")
    reborn = FakeLink()
    world.engine.opened(reborn)
    world.tell(reborn, LinkMessage(hello=Hello(id="d2")))
    world.tell(reborn, LinkMessage(catalog=Catalog()))
    assert world.engine.catalog.find("m", "").version == "1"
    wait_until(lambda: not world.engine.catalog.models())
    with pytest.raises(NotFound):
        world.engine.catalog.find("m", "")


def test_a_model_that_failed_before_it_had_a_version_is_known_as_not_ready(world: World) -> None:
    link = world.link()
    failed = ModelEntry(name="broken", state=ModelState.MODEL_STATE_UNAVAILABLE, reason="no file")
    world.tell(link, LinkMessage(catalog=Catalog(models=[world.entry(), failed])))
    with pytest.raises(Unavailable, match="no file"):
        world.engine.catalog.find("broken", "")


def test_an_unloaded_model_is_unknown_at_once(world: World) -> None:
    link = world.link()
    world.tell(link, LinkMessage(catalog=Catalog()))
    with pytest.raises(NotFound):
        world.engine.catalog.find("m", "")


def test_while_degraded_requests_without_a_version_get_the_cheaper_one() -> None:
    world = World(preprocess_fallback="m=1,gone=7")
    link = world.link()
    newer = world.entry()
    newer.version = "2"
    world.tell(link, LinkMessage(catalog=Catalog(models=[world.entry(), newer])))

    def found(version: str = "") -> str:
        return world.engine.catalog.find("m", version).version

    assert found() == "2"
    world.tell(link, LinkMessage(credits=Credits(degrade=True)))
    assert (found(), found("2")) == ("1", "2")
    assert world.engine.degraded
    world.tell(link, LinkMessage(catalog=Catalog(models=[newer])))
    assert found() == "2", "the cheaper one is not there"
    world.tell(link, LinkMessage(catalog=Catalog(models=[world.entry(), newer])))
    world.tell(link, LinkMessage(credits=Credits()))
    assert found() == "2"
    assert not world.engine.degraded
    world.engine.stop()


def test_dispatchers_may_ask_for_smaller_batches(world: World) -> None:
    link = world.link(window=1)
    world.submit("running")
    credit = Credit(model="m", version="1", window=1, instances=1, micro_batch_rows=3)
    world.tell(link, LinkMessage(credits=Credits(models=[credit])))
    for number in range(6):
        world.submit(str(number))
    world.complete(link, link.batches[0])
    assert link.batches[1].batch.rows == 3
