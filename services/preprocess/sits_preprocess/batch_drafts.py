"""Requests and answers of `sits.v1.Inference`: to drafts, and from results."""

from sits_core.errors import InvalidArgument
from sits_preprocess.batch_message import parameter_of
from sits_preprocess.oip.limits import MAX_ID_CHARS, MAX_TENSORS, check_count, check_name
from sits_preprocess.oip.outputs import Wanted, output_index
from sits_preprocess.oip.parameters import EXPLAIN, TENANT, sits_values
from sits_preprocess.oip.result import Result
from sits_preprocess.oip.signature import Signature
from sits_preprocess.oip.tensors import check_data, check_declared, check_rank, in_model_order
from sits_preprocess.request import NO_PARAMETERS, Parameters, TensorData
from sits_preprocess.shared_memory import Regions
from sits_protos.v1.common_pb2 import Tensor
from sits_protos.v1.inference_pb2 import InferRequest, InferResponse


class SitsDraft:
    """A request of a batch. Made by `SitsMessage.read`, which has checked its size."""

    __slots__ = ("_request", "id", "model", "version")

    def __init__(self, request: InferRequest) -> None:
        self._request = request
        self.id, self.model, self.version = request.id, request.model, request.version

    def parameters(self) -> Parameters:
        given = self._request.parameters
        return sits_values(given) if given else NO_PARAMETERS

    def inputs(self, signature: Signature, regions: Regions) -> tuple[TensorData, ...]:
        tensors = [_read_input(tensor, signature) for tensor in self._request.inputs]
        return in_model_order(signature, tensors)

    def outputs(self, signature: Signature, regions: Regions) -> list[Wanted]:
        names = self._request.outputs
        if len(set(names)) != len(names):
            raise InvalidArgument("expected every output to be requested once")
        return [Wanted(name, output_index(signature, name)) for name in names]


class SitsMessage:
    """A request of a batch as it came."""

    __slots__ = ("_request",)

    def __init__(self, request: InferRequest) -> None:
        self._request = request

    def names(self) -> tuple[str, str] | None:
        request = self._request
        return None if TENANT in request.parameters else (request.model, request.version)

    def read(self) -> SitsDraft:
        """Raises `InvalidArgument` when it declares more than the limits allow."""
        request = self._request
        check_name("request id", request.id, MAX_ID_CHARS)
        check_count("inputs", len(request.inputs), MAX_TENSORS)
        check_count("outputs", len(request.outputs), MAX_TENSORS)
        return SitsDraft(request)


def response_of(result: Result, index: int) -> InferResponse:
    response = InferResponse(index=index, id=result.id, model=result.model, version=result.version)
    if result.error is not None:
        response.error.CopyFrom(result.error.to_proto())
    for tensor in result.outputs:
        response.outputs.append(
            Tensor(
                name=tensor.name,
                datatype=tensor.datatype,
                shape=tensor.shape,
                inline=bytes(tensor.data),
            )
        )
    for name, value in result.parameters.items():
        response.parameters[name].CopyFrom(parameter_of(value))
    if result.explanation:
        response.parameters[EXPLAIN].string_value = result.explanation
    return response


def _read_input(tensor: Tensor, signature: Signature) -> TensorData:
    check_rank(tensor.name, len(tensor.shape))
    shape = tuple(tensor.shape)
    spec = check_declared(signature, tensor.name, tensor.datatype, shape)
    if tensor.WhichOneof("payload") != "inline":
        raise InvalidArgument(
            f"expected inline data for input '{spec.name}' for model "
            f"'{signature.model.name}', got {tensor.WhichOneof('payload') or 'none'}"
        )
    checked = TensorData(spec.name, spec.datatype, shape, tensor.inline)
    check_data(signature, spec, checked)
    return checked
