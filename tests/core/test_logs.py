"""What a log line holds, and what it never holds."""

import asyncio
import json
import logging
import threading
import warnings
from collections.abc import Callable, Iterator

import pytest
import structlog

from sits_core import logs
from sits_core.settings import Settings

Lines = Callable[[], list[dict[str, object]]]


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Iterator[Lines]:
    """JSON lines written since the last call."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    logs.configure("test", Settings(log_format="json"))
    yield lambda: [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    structlog.reset_defaults()
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_line_is_one_json_object_with_event_level_time_and_service(lines: Lines) -> None:
    structlog.get_logger().info("thing.happened", rows=3)
    (line,) = lines()
    assert (line["event"], line["level"], line["rows"]) == ("thing.happened", "info", 3)
    assert line["service"] == "test"
    assert str(line["timestamp"]).endswith("Z")


def test_lines_of_other_threads_carry_the_service_too(lines: Lines) -> None:
    thread = threading.Thread(target=lambda: structlog.get_logger().info("from.thread"))
    thread.start()
    thread.join()
    assert lines()[0]["service"] == "test"


def test_an_exception_is_part_of_its_line(lines: Lines) -> None:
    try:
        raise ValueError("redis://user:hunter2@host refused")
    except ValueError:
        structlog.get_logger().exception("thing.failed")
    (line,) = lines()
    assert "ValueError" in str(line["exception"])
    assert "hunter2" not in str(line)


@pytest.mark.parametrize(
    "fields",
    [
        {"mesh_token": "hunter2"},
        {"TOKEN": b"hunter2"},
        {"redis_password": "hunter2"},
        {"Authorization": "Bearer hunter2"},
        {"settings": {"admin_token": "hunter2", "deep": {"password": "hunter2"}}},
        {"url": "redis://:hunter2@host:6379/0"},
        {"url": "rediss://user:hu@nter2:hunter2@host"},
        {"urls": ["http://ok", "http://user:hunter2@host/path"]},
        {"error": ConnectionError("cannot reach redis://user:hunter2@host:6379")},
        {"headers": "authorization: Bearer hunter2"},
    ],
)
@pytest.mark.parametrize("log_format", ["json", "console"])
def test_secrets_are_never_written(
    fields: dict[str, object],
    log_format: str,
    lines: Lines,
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure("test", Settings.model_validate({"log_format": log_format}))
    structlog.get_logger().info("some.event", **fields)
    written = capsys.readouterr().err
    assert "some.event" in written
    assert logs.HIDDEN in written
    assert "hunter2" not in written


def test_what_is_no_secret_stays_as_it_is(lines: Lines) -> None:
    structlog.get_logger().info("e", tokens=128, address="http://host:80/a@b", mail="a@b.c")
    (line,) = lines()
    assert line["tokens"] == 128
    assert (line["address"], line["mail"]) == ("http://host:80/a@b", "a@b.c")


def test_libraries_log_in_the_same_form_from_warning_on(lines: Lines) -> None:
    library = logging.getLogger("grpc._server")
    library.info("not this")
    library.warning("cannot reach %s", "redis://user:hunter2@host")
    (line,) = lines()
    assert (line["level"], line["logger"]) == ("warning", "grpc._server")
    assert line["message"] == "cannot reach redis://***@host"


def test_warnings_of_python_are_lines_too(lines: Lines) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.warn("SOCKS needs PySocks", stacklevel=1)
    (line,) = lines()
    assert (line["level"], line["logger"]) == ("warning", "py.warnings")
    assert "SOCKS needs PySocks" in str(line["message"])


def test_a_library_that_repeats_itself_is_heard_once(lines: Lines) -> None:
    for attempt in range(100):
        logging.getLogger("redis").warning("attempt %d failed", attempt)
    assert [line["message"] for line in lines()] == ["attempt 0 failed"]


def test_the_traceback_of_a_library_is_kept(lines: Lines) -> None:
    try:
        raise ValueError("boom")
    except ValueError:
        logging.getLogger("uvicorn").exception("request failed")
    assert "boom" in str(lines()[0]["exception"])


def test_a_client_that_left_is_no_error_of_a_library(lines: Lines) -> None:
    for error in (asyncio.CancelledError(), ValueError("boom")):
        logging.getLogger("grpc._cython.cygrpc").error("not handled: %r", error, exc_info=error)
    assert [line["message"] for line in lines()] == ["not handled: ValueError('boom')"]


def test_lines_below_the_level_are_not_written(lines: Lines) -> None:
    logs.configure("test", Settings(log_level="error"))
    structlog.get_logger().warning("hidden")
    logging.getLogger("grpc").warning("hidden")
    assert lines() == []


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_rate_limited_lets_one_through_a_key_and_interval_and_counts_the_rest() -> None:
    clock = Clock()
    limit = logs.RateLimited(10.0, clock)
    assert [limit("a"), limit("a"), limit("b"), limit("a")] == [0, None, 0, None]
    clock.now = 10.0
    assert [limit("a"), limit("b")] == [2, 0]


def test_rate_limited_keeps_a_bounded_number_of_keys() -> None:
    clock = Clock()
    limit = logs.RateLimited(10.0, clock)
    passed = sum(limit(f"key {number}") is not None for number in range(5000))
    assert passed == limit.MAX_KEYS + 1
    assert len(limit._last) == limit.MAX_KEYS + 1
