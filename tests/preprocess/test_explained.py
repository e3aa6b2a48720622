"""Who asks why a request ran where it ran hears it with the answer: a parameter, or trailers."""

from collections.abc import Mapping

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from sits_preprocess.request import Answer, Run
from sits_protos.v1.inference_pb2 import InferBatchesRequest, InferBatchesResponse, InferRequest

SERVICE = "/inference.GRPCInferenceService/"
WHY = "executor=gpu-0;strategy=topo_aware;of=2"
ASKED = (("sits-explain", "true"),)


class Explained:
    """A front door whose engine says why."""

    def __init__(self, served) -> None:
        self.served, self.why, engine = served, WHY, served.engine
        run = engine._run
        engine._run = lambda request: self.explained(run(request))

    def explained(self, answer: Answer) -> Answer:
        return answer._replace(run=Run(explanation=self.why))

    def infer(self, asked, **parameters: bool) -> tuple[pb.ModelInferResponse, Mapping[str, str]]:
        with grpc.insecure_channel(self.served.address) as channel:
            method = channel.unary_unary(
                SERVICE + "ModelInfer", pb.ModelInferRequest.SerializeToString,
                pb.ModelInferResponse.FromString,
            )  # fmt: skip
            response, call = method.with_call(request(**parameters), timeout=20, metadata=asked)
            return response, dict(call.trailing_metadata())


def request(**parameters: bool) -> pb.ModelInferRequest:
    made = pb.ModelInferRequest(model_name="rows", id="r")
    made.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 4])
    made.raw_input_contents.append(np.ones((1, 4), np.float32).tobytes())
    for name, value in parameters.items():
        made.parameters[name].bool_param = value
    return made


@pytest.fixture
def explained(served) -> Explained:
    return Explained(served)


def test_asked_by_metadata_it_is_in_the_trailers(explained: Explained) -> None:
    response, trailers = explained.infer(ASKED)
    assert trailers["sits-explain"] == WHY
    assert "sits_explain" not in response.parameters
    assert (response.id, len(response.raw_output_contents[0])) == ("r", 16)
    assert explained.served.engine.taken[-1].explain


def test_asked_by_parameter_it_is_a_parameter(explained: Explained) -> None:
    response, trailers = explained.infer((), sits_explain=True)
    assert response.parameters["sits_explain"].string_param == WHY
    assert "sits-explain" not in trailers


@pytest.mark.parametrize("value", ["false", "", "yes"])
def test_who_does_not_ask_is_told_nothing(explained: Explained, value: str) -> None:
    response, trailers = explained.infer((("sits-explain", value),))
    assert "sits-explain" not in trailers
    assert not response.parameters
    assert not explained.served.engine.taken[-1].explain


def test_what_metadata_cannot_hold_is_written_in_what_it_can(explained: Explained) -> None:
    explained.why = "executor=é🐎;" + "x" * 10_000
    _, trailers = explained.infer(ASKED)
    assert trailers["sits-explain"].startswith("executor=\\xe9\\U0001f40e;xxx")
    assert len(trailers["sits-explain"]) == 4000


def test_on_a_stream_every_answer_has_its_own(explained: Explained) -> None:
    """Trailers come once, at the end."""
    with grpc.insecure_channel(explained.served.address) as channel:
        stream = channel.stream_stream(
            SERVICE + "ModelStreamInfer", pb.ModelInferRequest.SerializeToString,
            pb.ModelStreamInferResponse.FromString,
        )  # fmt: skip
        answers = stream(iter([request(), request()]), timeout=20, metadata=ASKED)
        found = [a.infer_response.parameters["sits_explain"].string_param for a in answers]
    assert found == [WHY, WHY]


def test_in_batches_as_well(explained: Explained) -> None:
    inference = InferRequest(model="rows")
    inference.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 4], inline=bytes(16))
    with grpc.insecure_channel(explained.served.address) as channel:
        stream = channel.stream_stream(
            "/sits.v1.Inference/InferBatches", InferBatchesRequest.SerializeToString,
            InferBatchesResponse.FromString,
        )  # fmt: skip
        sent = iter([InferBatchesRequest(requests=[inference])])
        (answer,) = stream(sent, timeout=20, metadata=ASKED)
    assert answer.responses[0].parameters["sits_explain"].string_value == WHY
