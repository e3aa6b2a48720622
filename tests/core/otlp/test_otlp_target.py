"""What the OTEL_ variables mean."""

from pathlib import Path

import pytest

from sits_core.otlp_target import OtelError, Target, apply_sampler, target
from sits_core.tracing import Tracer

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"
INSECURE = "OTEL_EXPORTER_OTLP_INSECURE"


def where(**environ: str) -> str:
    found = target(environ)
    assert found is not None
    return f"{found.protocol} {found.url}"


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {ENDPOINT: " "},
        {ENDPOINT: "host:4317", "OTEL_SDK_DISABLED": "TRUE"},
        {ENDPOINT: "host:4317", "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_without_an_endpoint_or_switched_off_there_is_no_target(environ: dict[str, str]) -> None:
    assert target(environ) is None


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({ENDPOINT: "host:4317"}, "grpc http://host:4317"),
        ({ENDPOINT: "http://host:4317"}, "grpc http://host:4317"),
        ({ENDPOINT: "http://host:4317/"}, "grpc http://host:4317"),
        ({ENDPOINT: "https://host:4317"}, "grpc https://host:4317"),
        ({ENDPOINT: "host"}, "grpc http://host:4317"),
        ({ENDPOINT: "https://host"}, "grpc https://host:4317"),
        ({ENDPOINT: "[::1]:4317"}, "grpc http://[::1]:4317"),
        ({ENDPOINT: "host:4317", INSECURE: "true"}, "grpc http://host:4317"),
        ({ENDPOINT: "host:4317", INSECURE: "false"}, "grpc https://host:4317"),
        ({ENDPOINT: "http://host:4317", INSECURE: "false"}, "grpc http://host:4317"),
        ({ENDPOINT: "https://host:4317", INSECURE: "true"}, "grpc https://host:4317"),
        ({ENDPOINT: "http://host:4318"}, "http/protobuf http://host:4318/v1/traces"),
        ({ENDPOINT: "host:4318"}, "http/protobuf http://host:4318/v1/traces"),
        (
            {ENDPOINT: "http://h:1/a/", PROTOCOL: "http/protobuf"},
            "http/protobuf http://h:1/a/v1/traces",
        ),
        ({ENDPOINT: "h", PROTOCOL: "http/protobuf"}, "http/protobuf http://h:4318/v1/traces"),
        ({TRACES: "http://h:4318/v1/traces"}, "http/protobuf http://h:4318/v1/traces"),
        ({TRACES: "https://h/own/v1/traces"}, "http/protobuf https://h:4318/own/v1/traces"),
        ({TRACES: "t:4317", ENDPOINT: "e:4317"}, "grpc http://t:4317"),
        ({TRACES: "", ENDPOINT: "e:4317"}, "grpc http://e:4317"),
        ({ENDPOINT: "http://host:4318", PROTOCOL: "grpc"}, "grpc http://host:4318"),
        (
            {
                ENDPOINT: "h:1",
                PROTOCOL: "grpc",
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
            },
            "http/protobuf http://h:1/v1/traces",
        ),
    ],
)
def test_every_form_of_endpoint_is_understood(environ: dict[str, str], expected: str) -> None:
    assert where(**environ) == expected


def test_a_named_ca_means_tls_where_the_endpoint_says_nothing(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.touch()
    environ = {ENDPOINT: "host:4317", "OTEL_EXPORTER_OTLP_CERTIFICATE": str(ca)}
    assert where(**environ) == "grpc https://host:4317"


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({ENDPOINT: "ftp://host:21"}, ENDPOINT),
        ({ENDPOINT: "http://"}, ENDPOINT),
        ({ENDPOINT: "host:port"}, ENDPOINT),
        ({TRACES: "http://host:99999"}, TRACES),
        ({ENDPOINT: "host:4317", PROTOCOL: "http/json"}, PROTOCOL),
        (
            {ENDPOINT: "h:1", "OTEL_EXPORTER_OTLP_CERTIFICATE": "/no/ca"},
            "OTEL_EXPORTER_OTLP_CERTIFICATE",
        ),
        ({ENDPOINT: "h:1", "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY": "/no"}, "TRACES_CLIENT_KEY"),
    ],
)
def test_a_wrong_variable_is_named(environ: dict[str, str], named: str) -> None:
    with pytest.raises(OtelError, match=named):
        target(environ)


def test_the_usual_port_of_the_other_protocol_is_pointed_out() -> None:
    grpc = target({ENDPOINT: "http://host:4318", PROTOCOL: "grpc"})
    http = target({ENDPOINT: "http://host:4317", PROTOCOL: "http/protobuf"})
    fine = target({ENDPOINT: "http://host:4317"})
    assert isinstance(grpc, Target)
    assert isinstance(http, Target)
    assert isinstance(fine, Target)
    assert "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf" in grpc.hint
    assert "OTEL_EXPORTER_OTLP_PROTOCOL=grpc" in http.hint
    assert fine.hint == ""


@pytest.mark.parametrize(
    ("sampler", "argument", "ratio", "caller_decides"),
    [
        ("always_on", "", 1.0, False),
        ("always_off", "nonsense is not looked at", 0.0, False),
        ("traceidratio", "0.25", 0.25, False),
        ("traceidratio", "", 1.0, False),
        ("parentbased_always_on", "", 1.0, True),
        ("parentbased_always_off", "", 0.0, True),
        ("ParentBased_TraceIdRatio", "0.5", 0.5, True),
    ],
)
def test_the_sampler_overrules_the_ratio(
    sampler: str, argument: str, ratio: float, caller_decides: bool
) -> None:
    tracer = Tracer("test", 1, 0.01)
    apply_sampler(tracer, {"OTEL_TRACES_SAMPLER": sampler, "OTEL_TRACES_SAMPLER_ARG": argument})
    assert (tracer.ratio, tracer.caller_decides, tracer.enabled) == (ratio, caller_decides, True)


def test_without_a_sampler_the_ratio_stays() -> None:
    tracer = Tracer("test", 1, 0.01)
    apply_sampler(tracer, {"OTEL_TRACES_SAMPLER_ARG": "1"})
    assert (tracer.ratio, tracer.caller_decides) == (0.01, True)


def test_the_sdk_switched_off_means_no_spans() -> None:
    tracer = Tracer("test", 1, 1.0)
    apply_sampler(tracer, {"OTEL_SDK_DISABLED": "true"})
    assert tracer.incoming(None) is None


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"OTEL_TRACES_SAMPLER": "jaeger_remote"}, "OTEL_TRACES_SAMPLER"),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "2"}, "SAMPLER_ARG"),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "nan"}, "SAMPLER_ARG"),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "x"}, "SAMPLER_ARG"),
    ],
)
def test_a_sampler_we_do_not_have_is_named_and_changes_nothing(
    environ: dict[str, str], named: str
) -> None:
    tracer = Tracer("test", 1, 0.01)
    with pytest.raises(OtelError, match=named):
        apply_sampler(tracer, environ)
    assert (tracer.ratio, tracer.caller_decides) == (0.01, True)
