"""Rules of ModelStatistics: counts grow with work done, once for each thing that happened."""

import threading

from sits_core.errors import Internal, Unavailable
from sits_preprocess.request import Answer, Answered, Request, Run, StepRun, Times
from sits_preprocess.statistics import MAX_BATCH_SIZES, Statistics
from sits_preprocess.testing import make_model
from sits_protos.oip.grpc_service_pb2 import ModelStatistics

START = 1_700_000_000_000_000_000
MODEL = make_model("m")


def times(started: int = START) -> Times:
    """Queue 100 ns, input 10, infer 200, output 30; back after 400."""
    return Times(
        input_started=started + 100,
        infer_started=started + 110,
        output_started=started + 310,
        executor_sent=started + 340,
        returned=started + 400,
    )


def request(rows: int = 1, *, model: str = "m", received: int = START) -> Request:
    return Request(lambda _: None, received, model=model, version="1", rows=rows)


def answer(batch: int = 1, rows: int = 1, *, started: int = START, **more: object) -> Answer:
    run = Run(times(started), execution=batch, rows=rows, instance="gpu-0")
    return Answer(run=run._replace(**more))


def record(statistics: Statistics, *answered: Answered) -> None:
    statistics.record(answered, [answer.error for _, answer in answered], START)


def stats(statistics: Statistics) -> ModelStatistics:
    (one,) = statistics.report([MODEL]).model_stats
    return one


def test_a_model_never_asked_reports_zeros() -> None:
    one = stats(Statistics())
    assert (one.name, one.version, one.inference_count, one.execution_count) == ("m", "1", 0, 0)
    assert one.last_inference == 0
    assert one.inference_stats.HasField("queue")
    assert one.inference_stats.queue.count == 0


def test_each_stage_counts_every_request_and_its_own_time() -> None:
    statistics = Statistics()
    for _ in range(2):
        record(statistics, (request(), answer(rows=2)))
    part = stats(statistics).inference_stats
    shown = {f.name: (d.count, d.ns) for f, d in part.ListFields()}
    assert shown == {
        "success": (2, 800), "queue": (2, 200), "compute_input": (2, 20),
        "compute_infer": (2, 400), "compute_output": (2, 60),
        "fail": (0, 0), "cache_hit": (0, 0), "cache_miss": (0, 0),
    }  # fmt: skip


def test_rows_are_inferences_and_batches_are_executions() -> None:
    statistics = Statistics()
    for rows in (1, 3, 4):
        record(statistics, (request(rows), answer(batch=1, rows=8)))
    record(statistics, (request(2), answer(batch=2, rows=2)))
    one = stats(statistics)
    assert (one.inference_count, one.execution_count) == (10, 2)


def test_an_execution_counts_once_however_its_answers_interleave() -> None:
    statistics = Statistics()
    for _ in range(3):
        for batch in range(20):
            record(statistics, (request(), answer(batch=batch, rows=3)))
    assert stats(statistics).execution_count == 20


def test_parts_of_one_batch_are_executions_of_their_own() -> None:
    statistics = Statistics()
    for started in (START, START, START + 1000):
        record(statistics, (request(), answer(batch=7, started=started)))
    record(statistics, (request(), answer(batch=7, instance="gpu-1")))
    assert stats(statistics).execution_count == 3


def test_batch_sizes_are_listed_apart_with_one_time_each_execution() -> None:
    statistics = Statistics()
    for batch, rows in ((1, 4), (2, 4), (3, 1)):
        for _ in range(rows):
            record(statistics, (request(), answer(batch=batch, rows=rows)))
    listed = {
        b.batch_size: (b.compute_input.count, b.compute_infer.ns, b.compute_output.ns)
        for b in stats(statistics).batch_stats
    }
    assert listed == {1: (1, 200, 30), 4: (2, 400, 60)}


def test_a_request_that_never_ran_fails_without_queue_or_compute() -> None:
    statistics = Statistics()
    refused = Answer(
        error=Unavailable("Exceeds maximum queue size"), run=Run(Times(returned=START))
    )
    record(statistics, (request(received=START - 50), refused))
    one = stats(statistics)
    assert (one.inference_stats.fail.count, one.inference_stats.fail.ns) == (1, 50)
    assert one.inference_stats.queue.count == 0
    assert (one.execution_count, one.inference_count, one.last_inference) == (0, 0, 0)


def test_a_request_that_failed_while_running_ticks_the_queue_only() -> None:
    statistics = Statistics()
    failed = Answer(error=Internal("model failed"), run=Run(times(), instance="gpu-0"))
    record(statistics, (request(3), failed))
    one = stats(statistics)
    assert (one.inference_stats.fail.count, one.inference_stats.queue.count) == (1, 1)
    assert (one.inference_count, one.execution_count, len(one.batch_stats)) == (0, 0, 0)


def test_a_batch_in_which_one_request_failed_is_one_execution() -> None:
    statistics = Statistics()
    failed = Answer(error=Internal("bad row"), run=Run(times(), instance="gpu-0"))
    for part in (failed, answer(rows=3), answer(rows=3)):
        record(statistics, (request(), part))
    one = stats(statistics)
    assert [(b.batch_size, b.compute_infer.count) for b in one.batch_stats] == [(3, 1)]
    assert one.execution_count == 1


def test_last_inference_is_the_latest_in_milliseconds() -> None:
    statistics = Statistics()
    for started in (START + 5_000_000, START):
        record(statistics, (request(received=started), answer(started=started)))
    assert stats(statistics).last_inference == START // 1_000_000 + 5


def test_clocks_that_disagree_never_make_negative_or_endless_times() -> None:
    statistics = Statistics()
    for skew in (-(10**9), 10**9):
        part = times(START + skew)._replace(returned=START + 400)
        record(statistics, (request(), answer(times=part)))
    one = stats(statistics).inference_stats
    assert one.queue.ns == 400
    assert one.compute_infer.ns == 400


def test_queue_time_starts_when_the_request_was_queued() -> None:
    statistics = Statistics()
    queued = request()
    queued.queued_ns = START + 60
    record(statistics, (queued, answer()))
    assert stats(statistics).inference_stats.queue.ns == 40


def test_statistics_of_models_gone_are_bounded_and_the_busy_one_stays() -> None:
    statistics = Statistics(max_models=3)
    record(statistics, (request(), answer(started=START + 10**9)))
    for number in range(50):
        record(statistics, (request(model=f"gone-{number}"), answer(started=START + number)))
    assert repr(statistics) == "<Statistics of 3 model versions>"
    assert stats(statistics).inference_count == 1


def test_counts_survive_an_unload_and_reload() -> None:
    statistics = Statistics()
    record(statistics, (request(), answer()))
    assert not statistics.report([]).model_stats
    record(statistics, (request(), answer(batch=2)))
    assert stats(statistics).inference_count == 2


def test_batch_sizes_are_bounded_and_none_is_lost() -> None:
    statistics = Statistics()
    for rows in range(1, 3 * MAX_BATCH_SIZES):
        record(statistics, (request(rows), answer(batch=rows, rows=rows)))
    one = stats(statistics)
    assert len(one.batch_stats) <= MAX_BATCH_SIZES + 64
    assert sum(b.compute_infer.count for b in one.batch_stats) == one.execution_count


def test_threads_lose_no_count() -> None:
    statistics = Statistics()

    def work(first: int) -> None:
        for batch in range(first, first + 500):
            record(statistics, (request(2), answer(batch=batch, rows=2)))

    threads = [threading.Thread(target=work, args=(n * 500,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    one = stats(statistics)
    assert (one.inference_count, one.execution_count) == (4000, 2000)
    assert one.inference_stats.success.count == 2000


def test_reports_keep_the_order_of_the_models() -> None:
    models = [make_model("b"), make_model("a", "2"), make_model("a", "10")]
    report = Statistics().report(models)
    assert [(s.name, s.version) for s in report.model_stats] == [
        ("b", "1"),
        ("a", "2"),
        ("a", "10"),
    ]


def test_a_pipelines_steps_count_for_their_own_models_and_their_sums_for_the_pipeline() -> None:
    """Two requests of 3 rows in all that ran together through two steps."""
    steps = (StepRun("a", "1", 3, 5, 10, 100, 0), StepRun("b", "2", 3, 7, 20, 90, 4))
    statistics = Statistics()
    one, other = answer(rows=3, steps=steps), answer(rows=3, steps=steps)
    record(statistics, (request(1), one), (request(2), other))
    own, a, b = statistics.report(
        [MODEL, make_model("a"), make_model("b", version="2")]
    ).model_stats
    assert [(s.inference_count, s.execution_count) for s in (own, a, b)] == [(3, 1)] * 3
    assert own.inference_stats.compute_input.ns == 2 * (10 + 10 + 20)
    assert own.inference_stats.compute_infer.ns == 2 * (100 + 90)
    assert own.inference_stats.compute_output.ns == 2 * (30 + 4)
    assert own.inference_stats.queue.ns == 2 * (100 + 5 + 7)
    assert (b.inference_stats.queue.count, b.inference_stats.queue.ns) == (2, 14)
    assert b.inference_stats.success.ns == 2 * (7 + 20 + 90 + 4)
    assert [(s.batch_size, s.compute_infer.ns) for s in b.batch_stats] == [(3, 90)]
