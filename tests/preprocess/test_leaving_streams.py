"""Clients that leave while their answers are written leave no error in our log."""

from collections.abc import Iterator

import grpc
import pytest
from tritonclient.grpc import service_pb2 as oip
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub as Stub

SIZE = 200_000
REQUESTS = 100
ROUNDS = 5


def requests() -> Iterator[oip.ModelInferRequest]:
    for _ in range(REQUESTS):
        request = oip.ModelInferRequest(model_name="any_UINT8")
        request.inputs.add(name="INPUT0", datatype="UINT8", shape=[SIZE])
        request.raw_input_contents.append(bytes(SIZE))
        yield request


def test_a_write_that_waits_for_a_client_who_leaves_is_no_error(
    served, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(ROUNDS):
        served.engine.taken.clear()
        with grpc.insecure_channel(served.address) as channel:
            answers = Stub(channel).ModelStreamInfer(requests())
            next(answers)
            # All are answered, and the client's flow control holds up the rest.
            served.until(lambda: len(served.engine.taken) == REQUESTS)
            answers.cancel()
    served.until(lambda: not served.front.servicer.streams)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
