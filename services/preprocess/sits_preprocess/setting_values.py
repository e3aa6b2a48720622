"""Values of the trace and logging extensions: parsed, checked and shown, without effect."""

import re
from dataclasses import dataclass, replace
from typing import Final

from sits_core.errors import InvalidArgument, Unimplemented
from sits_protos.oip import grpc_service_pb2 as pb

UNLIMITED: Final = -1

TRACE_SETTINGS = ("trace_level", "trace_rate", "trace_count", "log_frequency")
LOG_SETTINGS = ("log_info", "log_warning", "log_error", "log_verbose_level", "log_format")

_INTEGER = re.compile(r"-?[0-9]{1,20}")


@dataclass(frozen=True, slots=True)
class Trace:
    """`left` = traces still to start. None = as for all models, or as at the start."""

    on: bool | None = None
    ratio: float | None = None
    left: int | None = None

    def over(self, base: "Trace") -> "Trace":
        return Trace(
            base.on if self.on is None else self.on,
            base.ratio if self.ratio is None else self.ratio,
            base.left if self.left is None else self.left,
        )

    @property
    def share(self) -> float:
        return self.ratio if self.on and self.ratio and self.left else 0.0


@dataclass(frozen=True, slots=True)
class Log:
    info: bool
    warning: bool
    error: bool
    verbose_level: int
    format: str = "default"

    def methods(self) -> dict[str, bool]:
        """Which methods of a logger write, from the least severe on."""
        verbose = self.verbose_level > 0
        switches = (verbose, self.info, self.warning, self.error, self.error)
        return dict(zip(("debug", "info", "warning", "error", "critical"), switches, strict=True))


def changed_trace(old: Trace, key: str, values: list[str]) -> Trace:
    match key:
        case "trace_level":
            return replace(old, on=_level(values))
        case "trace_rate":
            rate = _integer(key, values, 0, (1 << 32) - 1)
            return replace(old, ratio=None if rate is None else 1 / rate if rate else 0.0)
        case "trace_count":
            return replace(old, left=_integer(key, values, UNLIMITED, (1 << 31) - 1))
        case "log_frequency":
            if _integer(key, values, 0, (1 << 32) - 1):
                raise Unimplemented("'log_frequency' must be 0: spans are not written to files")
            return old
        case "trace_file":
            raise Unimplemented("trace file location can not be updated through network protocol")
    raise InvalidArgument(
        f"unrecognized trace setting '{key}', expected one of {', '.join(TRACE_SETTINGS)}"
    )


def _level(values: list[str]) -> bool | None:
    for value in values:
        if value == "TENSORS":
            raise Unimplemented("trace level TENSORS is not supported: spans carry no payload")
        if value not in ("OFF", "TIMESTAMPS"):
            raise InvalidArgument(f"expected 'trace_level' OFF or TIMESTAMPS, got: {value}")
    if "OFF" in values and len(values) > 1:
        raise InvalidArgument("Expect only one trace level 'OFF' is specified")
    return "TIMESTAMPS" in values if values else None


def _integer(key: str, values: list[str], low: int, high: int) -> int | None:
    if not values:
        return None
    if len(values) > 1:
        raise InvalidArgument(f"expect only 1 value for '{key}'")
    if not _INTEGER.fullmatch(values[0]):
        raise InvalidArgument(f"Unable to parse '{key}', got: {values[0]}")
    if not low <= int(values[0]) <= high:
        raise InvalidArgument(
            f"Unable to parse '{key}', value is out of range [ {low}, {high} ], got: {values[0]}"
        )
    return int(values[0])


def trace_response(trace: Trace) -> pb.TraceSettingResponse:
    shown = {
        "trace_level": "TIMESTAMPS" if trace.on else "OFF",
        "trace_rate": str(round(1 / trace.ratio) if trace.ratio else 0),
        "trace_count": str(trace.left),
        "log_frequency": "0",
        "trace_file": "",
        "trace_mode": "opentelemetry",
    }
    value = pb.TraceSettingResponse.SettingValue
    return pb.TraceSettingResponse(settings={k: value(value=[v]) for k, v in shown.items()})


def changed_log(old: Log, key: str, value: pb.LogSettingsRequest.SettingValue) -> Log:
    match key:
        case "log_info":
            return replace(old, info=_boolean(key, value))
        case "log_warning":
            return replace(old, warning=_boolean(key, value))
        case "log_error":
            return replace(old, error=_boolean(key, value))
        case "log_verbose_level":
            if value.WhichOneof("parameter_choice") != "uint32_param":
                raise InvalidArgument("expect uint32 for 'log_verbose_level'")
            return replace(old, verbose_level=value.uint32_param)
        case "log_format":
            return replace(old, format=_format(value))
        case "log_file":
            raise Unimplemented("log file location can not be updated through network protocol")
    raise InvalidArgument(
        f"unrecognized log setting '{key}', expected one of {', '.join(LOG_SETTINGS)}"
    )


def _boolean(key: str, value: pb.LogSettingsRequest.SettingValue) -> bool:
    if value.WhichOneof("parameter_choice") != "bool_param":
        raise InvalidArgument(f"expect boolean for '{key}'")
    return value.bool_param


def _format(value: pb.LogSettingsRequest.SettingValue) -> str:
    if value.WhichOneof("parameter_choice") != "string_param":
        raise InvalidArgument("expect string for 'log_format'")
    if value.string_param not in ("default", "ISO8601"):
        raise InvalidArgument(
            f"invalid argument for log_format, expected default or ISO8601, "
            f"got: {value.string_param}"
        )
    return value.string_param


def log_response(log: Log) -> pb.LogSettingsResponse:
    value = pb.LogSettingsResponse.SettingValue
    return pb.LogSettingsResponse(
        settings={
            "log_file": value(string_param=""),
            "log_info": value(bool_param=log.info),
            "log_warning": value(bool_param=log.warning),
            "log_error": value(bool_param=log.error),
            "log_verbose_level": value(uint32_param=log.verbose_level),
            "log_format": value(string_param=log.format),
        }
    )
