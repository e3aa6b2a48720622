"""Every batch of a link is answered exactly once, or its link is gone."""

from typing import Any

import numpy as np
import pytest

from sits_channel.link import QUEUE_MESSAGES, Link
from sits_core.errors import Unavailable
from sits_executor import batch as batches
from sits_executor.answers import Run, Stages, result
from sits_executor.batch import Batch
from sits_executor.session import Session
from sits_executor.testing import batch
from sits_protos.v1.common_pb2 import Tensor
from sits_protos.v1.link_pb2 import BatchHeader, Cancel

LIMIT = 1 << 20


@pytest.fixture
def session() -> Session:
    return Session(Link("test", "peer"), "link-1", "me", LIMIT)


def accepted(session: Session, number: int = 1) -> Batch:
    message = batch(number, "m", [np.zeros((1, 1), np.float32)])
    own = batches.from_message(message, 1, session.answer, session.holder)
    assert session.accept(own)
    return own


def answer(session: Session, own: Batch, **run: Any) -> bool:
    return session.answer(result(own, Run(Stages(1), **run), "me", "1"))


def test_a_second_answer_goes_nowhere(session: Session) -> None:
    own = accepted(session)
    assert answer(session, own)
    assert not answer(session, own)
    assert len(session.link._outgoing) == 1
    assert session.idle


def test_a_number_is_free_again_once_answered(session: Session) -> None:
    own = accepted(session)
    assert not session.accept(
        batches.from_message(batch(1, "m", [np.zeros((1, 1))]), 1, session.answer, "x")
    )
    answer(session, own)
    accepted(session)


def test_a_link_that_does_not_take_a_result_is_closed(session: Session) -> None:
    """Its dispatcher moves the batches then; a result left out would never be missed."""
    while session.link.write(b"x").accepted:
        pass
    assert len(session.link._outgoing) == QUEUE_MESSAGES
    assert not answer(session, accepted(session))
    assert session.link.closed


def test_a_refusal_needs_no_accepted_batch(session: Session) -> None:
    session.refuse(BatchHeader(batch_id=5), Unavailable("no"), 1)
    assert len(session.link._outgoing) == 1


def test_a_result_too_large_says_so_and_its_outputs_went_nowhere(session: Session) -> None:
    outputs = [Tensor(name="y", inline=bytes(LIMIT))]
    assert not answer(session, accepted(session), outputs=outputs)
    assert len(session.link._outgoing) == 1
    assert session.state().errors_total == 1


def test_cancels_find_their_batch_by_its_number(session: Session) -> None:
    own = accepted(session, 7)
    assert session.find(Cancel(batch_id=7)) is own
    assert session.find(Cancel(batch_id=8)) is None
    session.cancel_all()
    assert own.cancelled == {0}


def test_the_state_counts_what_is_under_way(session: Session) -> None:
    accepted(session, 1)
    answer(session, accepted(session, 2))
    state = session.state()
    assert (state.batches_in_flight, state.rows_in_flight, state.batches_total) == (1, 1, 1)
    assert repr(session) == "<Session link-1 unanswered=1>"
