"""Answers as they lie in Redis."""

from sits_preprocess.batch_message import parameter_of
from sits_preprocess.cache.memory import Kept, kept_from
from sits_preprocess.cache.rules import Rule
from sits_preprocess.request import ParameterValue, TensorData
from sits_protos.v1.common_pb2 import Parameter, Tensor
from sits_protos.v1.registry_pb2 import CachedAnswer


def record_of(digest: bytes, answer: Kept) -> CachedAnswer:
    return CachedAnswer(
        digest=digest,
        made_unix_ns=answer.made_ns,
        outputs=[
            Tensor(name=name, datatype=datatype, shape=shape, inline=bytes(data))
            for name, datatype, shape, data in answer.outputs
        ],
        parameters={name: parameter_of(value) for name, value in answer.parameters.items()},
    )


def kept_of(record: CachedAnswer, rule: Rule, now: int) -> Kept:
    """Made by another host: its clock may be ahead, but nothing is kept for longer for that."""
    made_ns = min(record.made_unix_ns, now)
    outputs = tuple(
        TensorData(tensor.name, tensor.datatype, tuple(tensor.shape), tensor.inline)
        for tensor in record.outputs
    )
    parameters = {name: _value_of(value) for name, value in record.parameters.items()}
    return kept_from(outputs, parameters, made_ns, made_ns + rule.ttl_ns, rule.stale_ns)


def _value_of(parameter: Parameter) -> ParameterValue:
    choice = parameter.WhichOneof("value")
    value: ParameterValue = getattr(parameter, choice) if choice else ""
    return value
