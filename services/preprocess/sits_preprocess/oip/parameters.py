"""Request parameters: those of the protocol, ours, and the rest, which is the model's."""

from collections.abc import Mapping
from typing import NamedTuple

from sits_core.errors import InvalidArgument, Unimplemented
from sits_preprocess.oip.limits import (
    MAX_PARAMETERS,
    MAX_VALUE_CHARS,
    check_count,
    check_name,
)
from sits_preprocess.request import NO_PARAMETERS, Parameters, ParameterValue
from sits_protos.oip.grpc_service_pb2 import InferParameter
from sits_protos.v1.common_pb2 import Parameter

TENANT = "sits_tenant"
EXPLAIN = "sits_explain"
EMPTY_FINAL = "triton_enable_empty_final_response"
MAX_PRIORITY = (1 << 32) - 1
_SEQUENCE = frozenset(("sequence_id", "sequence_start", "sequence_end"))


class Options(NamedTuple):
    """`priority` 0 = default, 1 = most urgent. `timeout_us` 0 = none."""

    priority: int = 0
    timeout_us: int = 0
    tenant: str = ""
    empty_final: bool = False
    explain: bool = False
    custom: Parameters = NO_PARAMETERS


NO_OPTIONS = Options()


def oip_values(parameters: Mapping[str, InferParameter]) -> dict[str, ParameterValue]:
    """Plain values. Unsigned ones are for `priority` only, as in Triton."""
    check_count("parameters", len(parameters), MAX_PARAMETERS)
    return {key: _oip_value(key, parameter) for key, parameter in parameters.items()}


def _oip_value(key: str, parameter: InferParameter) -> ParameterValue:
    choice = parameter.WhichOneof("parameter_choice")
    if choice is None or (choice == "uint64_param" and key != "priority"):
        raise InvalidArgument(
            f"invalid value type for {key[:80]!r} parameter, expected bool_param, int64_param, "
            f"string_param or double_param, got {choice or 'nothing'}"
        )
    value: ParameterValue = getattr(parameter, choice)
    return value


def sits_values(parameters: Mapping[str, Parameter]) -> dict[str, ParameterValue]:
    """Plain values of the parameters of `sits.v1`."""
    check_count("parameters", len(parameters), MAX_PARAMETERS)
    return {key: _sits_value(key, parameter) for key, parameter in parameters.items()}


def _sits_value(key: str, parameter: Parameter) -> ParameterValue:
    choice = parameter.WhichOneof("value")
    if choice is None:
        raise InvalidArgument(f"parameter {key[:80]!r} has no value")
    value: ParameterValue = getattr(parameter, choice)
    return value


def read_options(values: Mapping[str, ParameterValue]) -> Options:
    """Raises `InvalidArgument` for wrong types and reserved names; sequences are refused."""
    if not values:
        return NO_OPTIONS
    for key, value in values.items():
        _check(key, value)
    _refuse_sequences(values)
    return Options(
        priority=min(_whole(values, "priority", "int64_param or uint64_param"), MAX_PRIORITY),
        timeout_us=_whole(values, "timeout", "int64_param"),
        tenant=_text(values, TENANT),
        empty_final=_flag(values, EMPTY_FINAL),
        explain=_flag(values, EXPLAIN),
        custom={key: value for key, value in values.items() if not _is_ours(key)},
    )


def _is_ours(key: str) -> bool:
    return key in ("priority", "timeout", TENANT, EXPLAIN, EMPTY_FINAL) or key in _SEQUENCE


def _check(key: str, value: ParameterValue) -> None:
    check_name("parameter name", key)
    if key.startswith("triton_") and key != EMPTY_FINAL:
        raise InvalidArgument(
            f"parameter {key!r}: parameter keys starting with 'triton_' are reserved for Triton "
            "usage and should not be specified."
        )
    if isinstance(value, str) and len(value) > MAX_VALUE_CHARS:
        raise InvalidArgument(
            f"value of parameter {key!r} has {len(value)} characters, "
            f"expected at most {MAX_VALUE_CHARS}"
        )


def _refuse_sequences(values: Mapping[str, ParameterValue]) -> None:
    sequence_id = values.get("sequence_id", 0)
    if isinstance(sequence_id, (bool, float)):
        raise _wrong_type("sequence_id", "int64_param or string_param")
    start, end = _flag(values, "sequence_start"), _flag(values, "sequence_end")
    if sequence_id or start or end:
        raise Unimplemented(
            "sequences are not supported: send requests without sequence_id, sequence_start "
            "and sequence_end"
        )


def _whole(values: Mapping[str, ParameterValue], key: str, expected: str) -> int:
    value = values.get(key, 0)
    if type(value) is not int:  # a bool is an int to isinstance
        raise _wrong_type(key, expected)
    if value < 0:
        raise InvalidArgument(f"invalid value for '{key}' parameter, expected >= 0, got {value}")
    return value


def _flag(values: Mapping[str, ParameterValue], key: str) -> bool:
    value = values.get(key, False)
    if not isinstance(value, bool):
        raise _wrong_type(key, "bool_param")
    return value


def _text(values: Mapping[str, ParameterValue], key: str) -> str:
    value = values.get(key, "")
    if not isinstance(value, str):
        raise _wrong_type(key, "string_param")
    return value


def _wrong_type(key: str, expected: str) -> InvalidArgument:
    return InvalidArgument(f"invalid value type for '{key}' parameter, expected {expected}.")
