"""The response cache behind a front port: ids, statistics, metrics, spans, classes."""

from dataclasses import replace

import numpy as np
import pytest
import tritonclient.grpc as triton

from sits_preprocess.cache.testing import cached


def ask(served, data: float = 1.0, **options) -> triton.InferResult:
    return served.infer("m", np.array([data], np.float32), **options)


@pytest.fixture
def front(serve):
    return serve(cached(), preprocess_response_cache_bytes=1 << 20, ratio=1.0)


def test_every_asker_gets_its_own_id(front) -> None:
    for name in ("one", "two", ""):
        result = ask(front, request_id=name)
        assert (result.get_response().id, result.as_numpy("OUTPUT0")) == (name, [1.0])
    assert len(front.engine.taken) == 1


def test_statistics_tell_hits_and_misses_as_triton_does(front) -> None:
    for _ in range(3):
        ask(front)
    ask(front, 2.0)
    client = front.client()
    (stats,) = client.get_inference_statistics("m").model_stats
    part = stats.inference_stats
    assert (part.cache_hit.count, part.cache_miss.count, part.success.count) == (2, 2, 4)
    assert part.cache_hit.ns > 0
    assert part.cache_miss.ns > 0
    assert (stats.inference_count, part.queue.count) == (2, 2)


def test_metrics_count_look_ups_by_where_they_ended(front) -> None:
    for _ in range(3):
        ask(front)
    name = "sits_response_cache_lookups_total"
    assert front.metric(name, model="m", result="memory") == 2
    assert front.metric(name, model="m", result="miss") == 1
    assert front.metric("sits_response_cache_answers") == 1
    assert front.metric("sits_response_cache_bytes") > 4


def test_the_client_sees_how_long_an_answer_is_over(serve) -> None:
    made = cached(response_cache_ttl_s="0.000001", response_cache_stale_s="3600")
    front = serve(made, preprocess_response_cache_bytes=1 << 20)
    ask(front)
    front.engine.degraded = True
    parameters = ask(front).get_response().parameters
    assert parameters["sits_stale_ms"].int64_param >= 0
    assert len(front.engine.taken) == 1


def test_the_span_of_a_hit_says_so(front) -> None:
    for _ in range(2):
        ask(front)
    spans = [span for span in front.tracer.spans() if span.name == "preprocess.request"]
    spans.sort(key=lambda span: span.start_ns)
    assert [span.attributes.get("cache") for span in spans] == [None, "memory"]


def test_it_is_off_until_it_is_given_room(serve) -> None:
    front = serve(cached())
    for _ in range(2):
        ask(front)
    assert len(front.engine.taken) == 2
    assert front.front.cache is None
    assert front.front.inference.engine is front.engine


def test_outputs_and_classes_are_arranged_for_each_asker(serve) -> None:
    labels = {"OUTPUT0": ("cat", "dog")}
    made = replace(cached(), labels=labels)
    front = serve(made, preprocess_response_cache_bytes=1 << 20)
    x = np.array([0.25, 0.75], np.float32)
    plain = front.infer("m", x, outputs=[triton.InferRequestedOutput("OUTPUT0")])
    classes = front.infer("m", x, outputs=[triton.InferRequestedOutput("OUTPUT0", class_count=1)])
    assert plain.as_numpy("OUTPUT0").tolist() == [0.25, 0.75]
    assert classes.as_numpy("OUTPUT0").tolist() == [b"0.750000:1:dog"]
    assert len(front.engine.taken) == 1
