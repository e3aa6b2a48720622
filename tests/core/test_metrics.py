"""Bounded labels and series, and the port that shows them."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import urlopen

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from sits_core.metrics import (
    MAX_SERIES,
    OVERFLOW,
    BoundedLabel,
    PayloadCopies,
    PlainHistogram,
    ProcessRegistry,
    fair_shares,
    serve_metrics,
)
from sits_core.settings import SettingsError


def series(registry: CollectorRegistry) -> list[str]:
    lines = generate_latest(registry).decode().splitlines()
    return [line for line in lines if not line.startswith("#")]


def test_names_beyond_the_limit_share_one_label() -> None:
    label = BoundedLabel(limit=2)
    assert [label(name) for name in "abcab"] == ["a", "b", OVERFLOW, "a", "b"]


@given(values=st.lists(st.floats(-1, 300)))
def test_a_plain_histogram_shows_what_the_librarys_shows(values: list[float]) -> None:
    shown = []
    for make in (_plain, _library):
        registry = CollectorRegistry()
        histogram = make(registry)
        for value in values:
            histogram.observe(value)
        shown.append([line for line in series(registry) if "_created" not in line])
    assert shown[0] == shown[1]


BUCKETS = (1, 2.5, 256)


def _plain(registry: CollectorRegistry) -> PlainHistogram:
    return PlainHistogram("size", "", BUCKETS, registry)


def _library(registry: CollectorRegistry) -> Histogram:
    return Histogram("size", "", buckets=BUCKETS, registry=registry)


def test_the_interpreter_is_part_of_the_process() -> None:
    text = "\n".join(series(ProcessRegistry()))
    assert "process_resident_memory_bytes" in text
    assert "python_gc_collections_total" in text
    assert "python_info" in text


def test_no_series_tells_when_another_began() -> None:
    registry = ProcessRegistry()
    Counter("made", "some", registry=registry).inc()
    assert "made_total 1.0" in series(registry)
    assert not [line for line in series(registry) if "_created" in line]


def test_a_process_never_shows_more_than_its_series() -> None:
    registry = ProcessRegistry()
    small = Gauge("small", "one", registry=registry)
    wide = Counter("wide", "many", ["a", "b"], registry=registry)
    histogram = Histogram("long", "many", ["a"], registry=registry)
    small.set(1)
    for number in range(15_000):
        wide.labels(str(number // 10), str(number % 10)).inc()
    for number in range(1_000):
        histogram.labels(str(number)).observe(1)
    shown = series(registry)
    assert len(shown) == MAX_SERIES
    assert "small 1.0" in shown
    assert float(shown[-1].split()[1]) > 20_000
    assert shown[-1].startswith("sits_series_hidden")


def test_below_the_limit_nothing_is_hidden() -> None:
    registry = ProcessRegistry()
    Counter("some", "few", ["a"], registry=registry).labels("x").inc()
    shown = series(registry)
    assert 'some_total{a="x"} 1.0' in shown
    assert "sits_series_hidden 0.0" in shown


@given(st.lists(st.integers(0, 1000), max_size=20), st.integers(0, 5000))
def test_fair_shares_use_what_there_is_and_favour_the_small(wanted: list[int], total: int) -> None:
    shares = fair_shares(wanted, total)
    assert all(0 <= share <= wish for share, wish in zip(shares, wanted, strict=True))
    assert sum(shares) == min(total, sum(wanted))
    cut = [share for share, wish in zip(shares, wanted, strict=True) if share < wish]
    assert not cut or max(shares) <= max(cut) + 1


@contextmanager
def taken_port() -> Iterator[int]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "[::1]", "[::]"])  # noqa: S104 - must work too
def test_metrics_are_served_on_ipv4_and_ipv6(host: str) -> None:
    if host.startswith("[") and not has_ipv6():
        pytest.skip("no IPv6 here")
    server = serve_metrics(f"{host}:0", ProcessRegistry())
    reach = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)  # noqa: S104 - as above
    try:
        url = f"http://{reach}:{server.server_port}/metrics"
        with urlopen(url, timeout=10) as answer:
            assert b"process_cpu_seconds_total" in answer.read()
    finally:
        server.shutdown()


def test_shutdown_frees_the_port() -> None:
    first = serve_metrics("127.0.0.1:0", CollectorRegistry())
    first.shutdown()
    serve_metrics(f"127.0.0.1:{first.server_port}", CollectorRegistry()).shutdown()


def test_a_taken_port_is_refused_with_its_name() -> None:
    with (
        taken_port() as port,
        pytest.raises(SettingsError, match=rf"127\.0\.0\.1:{port}.*in use"),
    ):
        serve_metrics(f"127.0.0.1:{port}", CollectorRegistry())


@pytest.mark.parametrize(
    "bind", ["127.0.0.1", "127.0.0.1:http", "127.0.0.1:70000", "no.such.invalid:0"]
)
def test_an_address_that_is_none_is_refused_with_its_name(bind: str) -> None:
    with pytest.raises(SettingsError, match=bind):
        serve_metrics(bind, CollectorRegistry())


def test_copies_are_counted_in_bytes_and_in_whole_payloads() -> None:
    registry = CollectorRegistry()
    copies = PayloadCopies(registry)
    copies.count("batch", 3 * 200, 200, requests=2)
    copies.count("batch", 50, 200, requests=4)
    copies.count("result", 0, 700, requests=1)
    copies.count("result", 0, 0, requests=1)
    assert registry.get_sample_value("sits_copied_bytes_total", {"stage": "batch"}) == 650
    assert registry.get_sample_value("sits_payload_copies_total", {"stage": "batch"}) == 7
    assert registry.get_sample_value("sits_payload_copies_total", {"stage": "result"}) == 0
