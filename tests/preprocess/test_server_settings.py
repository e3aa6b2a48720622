"""Rules of trace and log settings: checked whole, applied whole, and with effect."""

import random
from collections.abc import Iterator

import pytest
import structlog
from structlog.testing import CapturingLogger

from sits_core.errors import InvalidArgument, NotFound, SitsError, Unimplemented
from sits_core.tracing import Tracer
from sits_preprocess.server_settings import LogSettings, TraceSettings
from sits_preprocess.testing import FakeCatalog, make_model
from sits_protos.oip import grpc_service_pb2 as pb
from sits_protos.v1.link_pb2 import ModelState

SAMPLED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
NOT_SAMPLED = SAMPLED[:-1] + "0"


# Traces


@pytest.fixture
def tracer() -> Tracer:
    return Tracer("preprocess", 10, 0.3, random.Random(1))


@pytest.fixture
def catalog() -> FakeCatalog:
    return FakeCatalog(
        make_model("m"), make_model("n"), make_model("l", state=ModelState.MODEL_STATE_LOADING)
    )


@pytest.fixture
def traces(tracer: Tracer, catalog: FakeCatalog) -> TraceSettings:
    return TraceSettings(tracer, catalog)


def change(traces: TraceSettings, model: str = "", **settings: str | list[str]) -> dict[str, str]:
    request = pb.TraceSettingRequest(model_name=model)
    for key, value in settings.items():
        request.settings[key].value.extend([value] if isinstance(value, str) else value)
    shown = traces.update(request).settings
    return {key: ",".join(value.value) for key, value in shown.items()}


def started(traces: TraceSettings, model: str, requests: int = 400) -> int:
    return sum(traces.incoming(model, None) is not None for _ in range(requests))


def test_trace_settings_start_as_the_process_does(traces: TraceSettings, tracer: Tracer) -> None:
    assert change(traces) == {
        "trace_level": "TIMESTAMPS", "trace_rate": "3", "trace_count": "-1",
        "log_frequency": "0", "trace_file": "", "trace_mode": "opentelemetry",
    }  # fmt: skip
    assert tracer.ratio == 0.3


def test_a_process_without_tracing_shows_off_and_can_be_switched_on(catalog: FakeCatalog) -> None:
    tracer = Tracer("preprocess", 10, 0.0)
    traces = TraceSettings(tracer, catalog)
    assert change(traces)["trace_level"] == "OFF"
    assert tracer.ratio == 0
    assert change(traces, trace_level="TIMESTAMPS")["trace_rate"] == "1000"
    assert tracer.ratio == 0.001


def test_the_rate_is_the_tracers_ratio(traces: TraceSettings, tracer: Tracer) -> None:
    for rate, ratio in (("1", 1.0), ("250", 0.004), ("4294967295", 1 / 4294967295), ("0", 0.0)):
        assert change(traces, trace_rate=rate)["trace_rate"] == rate
        assert tracer.ratio == ratio


def test_off_starts_no_trace_and_on_starts_them_again(traces: TraceSettings) -> None:
    change(traces, trace_rate="1")
    assert change(traces, trace_level="OFF")["trace_level"] == "OFF"
    assert started(traces, "m") == 0
    change(traces, trace_level="TIMESTAMPS")
    assert started(traces, "m") == 400


def test_a_models_settings_are_its_own(traces: TraceSettings, tracer: Tracer) -> None:
    change(traces, trace_level="OFF")
    assert change(traces, "m", trace_rate="1", trace_level="TIMESTAMPS")["trace_rate"] == "1"
    assert (started(traces, "m"), started(traces, "n")) == (400, 0)
    assert tracer.ratio == 0
    assert change(traces, "n")["trace_level"] == "OFF"


def test_a_cleared_setting_follows_the_one_above_it(traces: TraceSettings, tracer: Tracer) -> None:
    change(traces, trace_rate="10")
    change(traces, "m", trace_rate="1")
    assert change(traces, "m", trace_rate=[])["trace_rate"] == "10"
    assert change(traces, trace_rate=[])["trace_rate"] == "3"
    assert change(traces, "m")["trace_rate"] == "3"
    assert tracer.ratio == 0.3


def test_a_models_unset_settings_follow_later_changes_for_all(traces: TraceSettings) -> None:
    change(traces, "m", trace_count="5")
    change(traces, trace_rate="7")
    assert change(traces, "m")["trace_rate"] == "7"


def test_the_count_ends_tracing_after_so_many_traces(traces: TraceSettings) -> None:
    change(traces, trace_rate="1", trace_count="3")
    assert started(traces, "m", 2) == 2
    assert change(traces)["trace_count"] == "1"
    assert started(traces, "n") == 1
    assert change(traces)["trace_count"] == "0"
    assert change(traces, trace_count="-1")["trace_count"] == "-1"
    assert started(traces, "m", 5) == 5


def test_a_models_count_is_counted_apart(traces: TraceSettings) -> None:
    change(traces, trace_rate="1", trace_count="4")
    change(traces, "m", trace_count="2")
    assert (started(traces, "m"), started(traces, "n")) == (2, 4)


def test_the_clients_decision_wins_and_is_not_counted(traces: TraceSettings) -> None:
    change(traces, trace_rate="1", trace_count="1")
    assert traces.incoming("m", NOT_SAMPLED) is None
    for _ in range(3):
        context = traces.incoming("m", SAMPLED)
        assert context is not None
        assert context.span_id.hex() == "b7ad6b7169203331"
    assert change(traces)["trace_count"] == "1"


def test_a_loading_model_has_settings_and_an_unknown_one_is_not_found(
    traces: TraceSettings,
) -> None:
    assert change(traces, "l", trace_rate="5")["trace_rate"] == "5"
    with pytest.raises(NotFound, match="Request for unknown model: 'x' is not found"):
        change(traces, "x")


def test_settings_of_models_gone_are_forgotten(traces: TraceSettings, catalog: FakeCatalog) -> None:
    change(traces, "m", trace_rate="1")
    catalog.known = [make_model("n")]
    change(traces)
    catalog.known = [make_model("m")]
    assert change(traces, "m")["trace_rate"] == "3"


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"trace_level": "ALL"}, InvalidArgument, "expected 'trace_level' OFF or TIMESTAMPS"),
        ({"trace_level": ["OFF", "TIMESTAMPS"]}, InvalidArgument, "Expect only one trace level"),
        ({"trace_level": "TENSORS"}, Unimplemented, "spans carry no payload"),
        ({"trace_rate": "often"}, InvalidArgument, "Unable to parse 'trace_rate', got: often"),
        ({"trace_rate": "1.5"}, InvalidArgument, "Unable to parse 'trace_rate', got: 1.5"),
        ({"trace_rate": "٣"}, InvalidArgument, "Unable to parse 'trace_rate'"),
        ({"trace_rate": "1" * 5000}, InvalidArgument, "Unable to parse 'trace_rate'"),
        ({"trace_rate": "-1"}, InvalidArgument, "out of range"),
        ({"trace_rate": "4294967296"}, InvalidArgument, "out of range"),
        ({"trace_rate": ["1", "2"]}, InvalidArgument, "expect only 1 value for 'trace_rate'"),
        ({"trace_count": "-2"}, InvalidArgument, "out of range"),
        ({"log_frequency": "10"}, Unimplemented, "'log_frequency' must be 0"),
        ({"trace_file": "/tmp/x"}, Unimplemented, "trace file location can not be updated"),  # noqa: S108 - refused
        ({"trace_mode": "triton"}, InvalidArgument, "unrecognized trace setting 'trace_mode'"),
    ],
)
def test_one_wrong_trace_setting_changes_none(
    traces: TraceSettings,
    tracer: Tracer,
    settings: dict[str, str | list[str]],
    error: type[SitsError],
    text: str,
) -> None:
    before = change(traces)
    with pytest.raises(error, match=text):
        change(traces, **{"trace_count": "9", **settings})
    assert change(traces) == before
    assert tracer.ratio == 0.3


def test_settings_that_a_client_reads_it_can_write_back(traces: TraceSettings) -> None:
    shown = change(traces)
    del shown["trace_file"], shown["trace_mode"]
    assert change(traces, **shown).items() >= shown.items()


# Logs


@pytest.fixture
def written() -> Iterator[CapturingLogger]:
    """What structlog writes, with its configuration put back afterwards."""
    logger = CapturingLogger()
    before = structlog.get_config()
    structlog.configure(
        processors=[structlog.processors.KeyValueRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger("info"),
        logger_factory=lambda *_: logger,
        cache_logger_on_first_use=False,
    )
    yield logger
    structlog.configure(**before)


def log_change(logs: LogSettings, **settings: bool | int | str) -> dict[str, bool | int | str]:
    request = pb.LogSettingsRequest()
    for key, value in settings.items():
        kind = {bool: "bool_param", int: "uint32_param", str: "string_param"}[type(value)]
        setattr(request.settings[key], kind, value)
    shown = logs.update(request).settings
    return {
        key: getattr(value, str(value.WhichOneof("parameter_choice")))
        for key, value in shown.items()
    }


def levels(written: CapturingLogger) -> list[str]:
    """Which of one line on each level come out of a logger made long before."""
    written.calls.clear()
    for method in ("debug", "info", "warning", "error", "critical"):
        getattr(EARLY, method)(method)
    return [call.method_name for call in written.calls]


EARLY = structlog.get_logger()


def test_log_settings_start_as_the_process_does() -> None:
    assert log_change(LogSettings("warning")) == {
        "log_file": "", "log_info": False, "log_warning": True, "log_error": True,
        "log_verbose_level": 0, "log_format": "default",
    }  # fmt: skip
    assert log_change(LogSettings("debug"))["log_verbose_level"] == 1


def test_each_switch_mutes_its_own_lines(written: CapturingLogger) -> None:
    logs = LogSettings("info")
    assert levels(written) == ["info", "warning", "error", "critical"]
    log_change(logs, log_verbose_level=1)
    assert levels(written) == ["debug", "info", "warning", "error", "critical"]
    log_change(logs, log_warning=False)
    assert levels(written) == ["debug", "info", "error", "critical"]
    log_change(logs, log_verbose_level=0, log_info=False)
    assert levels(written) == ["error", "critical"]
    log_change(logs, log_error=False)
    assert levels(written) == []
    log_change(logs, log_info=True)
    assert levels(written) == ["info"]


def test_updates_do_not_pile_up_processors(written: CapturingLogger) -> None:
    logs = LogSettings("info")
    for round_ in range(10):
        log_change(logs, log_info=bool(round_ % 2))
    assert len(structlog.get_config()["processors"]) == 2


def test_reading_log_settings_leaves_the_logger_alone(written: CapturingLogger) -> None:
    before = structlog.get_config()
    log_change(LogSettings("debug"))
    assert structlog.get_config() == before


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"log_info": "yes"}, InvalidArgument, "expect boolean for 'log_info'"),
        ({"log_warning": 1}, InvalidArgument, "expect boolean for 'log_warning'"),
        ({"log_error": "no"}, InvalidArgument, "expect boolean for 'log_error'"),
        ({"log_verbose_level": True}, InvalidArgument, "expect uint32 for 'log_verbose_level'"),
        ({"log_format": True}, InvalidArgument, "expect string for 'log_format'"),
        ({"log_format": "XML"}, InvalidArgument, "invalid argument for log_format"),
        ({"log_file": "/tmp/x"}, Unimplemented, "log file location can not be updated"),  # noqa: S108 - refused
        ({"log_color": True}, InvalidArgument, "unrecognized log setting 'log_color'"),
    ],
)
def test_one_wrong_log_setting_changes_none(
    written: CapturingLogger,
    settings: dict[str, bool | int | str],
    error: type[SitsError],
    text: str,
) -> None:
    logs = LogSettings("info")
    with pytest.raises(error, match=text):
        log_change(logs, **{"log_verbose_level": 1, "log_info": False, **settings})
    assert log_change(logs) == log_change(LogSettings("info"))
    assert levels(written) == ["info", "warning", "error", "critical"]


def test_an_unset_log_value_is_refused() -> None:
    request = pb.LogSettingsRequest()
    request.settings["log_info"].SetInParent()
    with pytest.raises(InvalidArgument, match="expect boolean for 'log_info'"):
        LogSettings("info").update(request)
