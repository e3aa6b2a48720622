"""Graphs: buckets, padding, capture on demand, eviction, fallback. On the CPU a graph is a rerun,
so everything but CUDA itself is what runs on a GPU."""

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from google.protobuf import text_format

from sits_executor.backends.budget import Budget
from sits_executor.backends.pytorch import device as devices
from sits_executor.backends.pytorch.archives import Opened
from sits_executor.backends.pytorch.capture import difference
from sits_executor.backends.pytorch.device import CpuDevice
from sits_executor.backends.pytorch.faults import translated
from sits_executor.backends.pytorch.graph_options import GraphOptions, bucket_of
from sits_executor.backends.pytorch.model import named
from sits_executor.backends.pytorch.slots import SlotPool
from sits_executor.backends.pytorch.streams import StreamedBackend
from sits_executor.backends.streamed import DeviceLost, OutOfMemory, StreamBackend
from sits_executor.contract import contract_of
from sits_protos.oip.model_config_pb2 import ModelConfig

FIXED = "dims: [4]"
FREE = "dims: [-1]"


class Sums(torch.nn.Module):
    """[rows, n] → [rows, 1], and how often it ran."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("runs", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.runs += 1
        return x.sum(1, keepdim=True)


class Open:
    """Backends that are closed at the end."""

    def __init__(self) -> None:
        self.opened: list[StreamedBackend] = []

    def __call__(
        self,
        module: torch.nn.Module,
        dims: str = FIXED,
        *,
        streams: int = 1,
        options: GraphOptions | None = None,
        device: Any = None,
        staging: Budget | None = None,
        max_batch: int = 8,
    ) -> StreamedBackend:
        config = text_format.Parse(
            f"name: 'm' max_batch_size: {max_batch} "
            f"input {{ name: 'x' data_type: TYPE_FP32 {dims} }} "
            "output { name: 'y' data_type: TYPE_FP32 dims: [1] }",
            ModelConfig(),
        )
        model = named(config, Opened(module, ("x",)))
        backend = StreamedBackend(
            model,
            device or CpuDevice(captures=True),
            streams,
            options or GraphOptions(after=2),
            staging or Budget(),
        )
        backend.prepare(contract_of(config, "1"))
        self.opened.append(backend)
        return backend


@pytest.fixture(name="opened")
def opener() -> Iterator[Open]:
    own = Open()
    yield own
    for backend in own.opened:
        backend.close()


def run(backend: StreamedBackend, *shape: int, seed: int = 0) -> bool:
    """Whether a run on random data gives the sums of its rows."""
    x = np.random.default_rng(seed).standard_normal(shape, np.float32)
    y = backend.run({"x": x}, {})["y"]
    return y.shape == (shape[0], 1) and np.allclose(y[:, 0], x.sum(1), atol=1e-5)


def grown(backend: StreamedBackend) -> None:
    """Wait for the captures that were asked for."""
    backend._graphs._growth.settle()


def test_it_is_a_stream_backend(opened: Open) -> None:
    assert isinstance(opened(Sums()), StreamBackend)


@pytest.mark.parametrize(
    ("max_rows", "buckets"),
    [
        (0, (1,)),
        (1, (1,)),
        (8, (1, 2, 4, 8)),
        (12, (1, 2, 4, 8, 12)),
        (32, (1, 2, 4, 8, 16, 24, 32)),
        (50, (1, 2, 4, 8, 16, 24, 32, 48, 50)),
    ],
)
def test_buckets_are_powers_of_two_halfway_between_large_ones_and_the_largest_batch(
    max_rows: int, buckets: tuple[int, ...]
) -> None:
    assert GraphOptions().up_to(max_rows) == buckets


def test_a_batch_takes_the_smallest_bucket_that_holds_it() -> None:
    assert [bucket_of(rows, (1, 4, 8)) for rows in (1, 2, 4, 5, 8, 9)] == [1, 4, 4, 8, 8, None]


def test_every_bucket_is_captured_at_load_and_batches_of_any_size_are_right(opened: Open) -> None:
    backend = opened(Sums())
    assert backend.stats.graphs == 4
    assert all(run(backend, rows, 4, seed=seed) for seed, rows in enumerate((1, 2, 3, 4, 8, 3, 1)))
    assert (backend.stats.replays, backend.stats.eager_runs) == (7, 0)
    assert backend.stats.padded_rows == 2


def test_rows_of_an_earlier_batch_are_not_in_the_padding(opened: Open) -> None:
    class Total(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sum().expand(len(x), 1)

    backend = opened(Total())
    backend.run({"x": np.ones((8, 4), np.float32)}, {})
    assert backend.run({"x": np.ones((5, 4), np.float32)}, {})["y"].tolist() == [[20]] * 5


def test_more_rows_than_any_bucket_run_eagerly_and_right(opened: Open) -> None:
    backend = opened(Sums(), options=GraphOptions(buckets=(1, 2)))
    assert run(backend, 5, 4)
    assert (backend.stats.replays, backend.stats.eager_runs) == (0, 1)


def test_a_shape_that_comes_often_gets_a_graph_while_serving(opened: Open) -> None:
    backend = opened(Sums(), FREE)
    assert backend.stats.graphs == 0
    assert all(run(backend, 3, 6, seed=seed) for seed in range(2))
    grown(backend)
    assert backend.stats.graphs == 1
    assert run(backend, 4, 6)
    assert backend.stats.replays == 1
    assert run(backend, 4, 7)
    assert backend.stats.eager_runs == 3


def test_five_hundred_shapes_are_right_and_the_graphs_are_bounded(opened: Open) -> None:
    backend = opened(Sums(), FREE, options=GraphOptions(after=1, limit=5))
    assert all(run(backend, 1 + n % 8, 1 + n % 250, seed=n) for n in range(500))
    grown(backend)
    assert 0 < backend.stats.graphs <= 5
    assert len(backend._graphs._layouts) <= 5


def test_what_was_not_used_for_longest_makes_room(opened: Open) -> None:
    backend = opened(Sums(), options=GraphOptions(limit=3))
    (slot,) = backend._slots.slots
    assert [rows for _, rows in slot.graphs] == [4, 2, 1]


def test_a_counter_in_the_model_counts_runs_not_warm_ups(opened: Open) -> None:
    module = Sums()
    backend = opened(module)
    assert module.runs.item() == 0
    for rows in (1, 3, 8):
        run(backend, rows, 4)
    assert module.runs.item() == 3


def test_a_model_with_random_results_gets_no_graphs_and_that_is_counted(opened: Open) -> None:
    class Noise(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.rand(len(x), 1)

    backend = opened(Noise())
    assert backend.stats.fallbacks == {"differs": 4}
    assert backend.run({"x": np.ones((2, 4), np.float32)}, {})["y"].shape == (2, 1)
    assert (backend.stats.graphs, backend.stats.eager_runs) == (0, 1)


class Stubborn(CpuDevice):
    """Captures nothing."""

    def __init__(self, error: Exception) -> None:
        super().__init__(captures=True)
        self._error = error

    def capture(self, stream: Any, pool: Any, run: Callable[[], None]) -> devices.Graph:
        raise self._error


@pytest.mark.parametrize(
    ("error", "reason"),
    [(RuntimeError("operation not permitted when stream is capturing"), "capture_failed"),
     (torch.OutOfMemoryError("no"), "no_memory")],
)  # fmt: skip
def test_a_capture_that_fails_leaves_the_model_serving_eagerly(
    error: Exception, reason: str, opened: Open
) -> None:
    backend = opened(Sums(), device=Stubborn(error))
    assert run(backend, 3, 4)
    assert backend.stats.fallbacks == {reason: 4}
    run(backend, 3, 4)
    run(backend, 3, 4)
    grown(backend)
    assert backend.stats.fallbacks == {reason: 4}, "it is not tried again for every batch"


def test_outputs_without_rows_are_no_reason_for_a_graph(opened: Open) -> None:
    class One(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sum().reshape(1, 1)

    assert opened(One()).stats.fallbacks == {"rows": 4}


def test_two_streams_have_buffers_of_their_own(opened: Open) -> None:
    backend = opened(Sums(), streams=2)
    assert backend.stats.graphs == 8
    x = [np.full((2, 4), value, np.float32) for value in (1, 2, 3)]
    staged = [backend.stage({"x": array}) for array in x]
    first, second = (backend.launch(one, {}) for one in staged[:2] if one is not None)
    assert first is not None
    assert second is not None
    assert backend.free == 0
    assert staged[2] is not None
    assert backend.launch(staged[2], {}) is None
    assert [f.land()["y"][0, 0] for f in (second, first)] == [8, 4]
    assert backend.free == 2


def test_results_stay_until_they_are_released_and_then_the_memory_is_used_again(
    opened: Open,
) -> None:
    staging = Budget()
    backend = opened(Sums(), staging=staging)
    for value in (1, 2):
        staged = backend.stage({"x": np.full((2, 4), value, np.float32)})
        assert staged is not None
        flight = backend.launch(staged, {})
        assert flight is not None
        assert flight.done()
        outputs = flight.land()
        other = backend.stage({"x": np.zeros((8, 4), np.float32)})
        assert other is not None
        assert outputs["y"].tolist() == [[4 * value]] * 2
        other.discard()
        flight.release()
    assert staging.used == 2 * (8 * 4 * 4 + 8 * 4)


def test_staging_memory_is_held_to_its_budget_but_one_batch_always_fits(opened: Open) -> None:
    backend = opened(Sums(), staging=Budget(1))
    x = {"x": np.ones((2, 4), np.float32)}
    staged = backend.stage(x)
    assert staged is not None
    assert backend.stage(x) is None
    staged.discard()
    assert backend.stage(x) is not None


def test_a_closed_backend_gives_its_staging_memory_back(opened: Open) -> None:
    staging = Budget()
    backend = opened(Sums(), staging=staging)
    run(backend, 2, 4)
    assert staging.used > 0
    backend.close()
    assert staging.used == 0


def test_graphs_and_weights_of_a_closed_backend_go_at_once_not_when_the_collector_looks() -> None:
    gc.disable()
    try:
        module = Sums()
        weights, backend = weakref.ref(module), Open()(module)
        run(backend, 2, 4)
        backend.close()
        assert not backend._slots.slots[0].graphs
        del backend, module
        assert weights() is None
    finally:
        gc.enable()


def test_a_capture_takes_a_stream_before_new_runs_do(opened: Open) -> None:
    pool = opened(Sums())._slots
    (slot,) = pool.slots
    pool._claimed.add(slot)
    assert pool.free == 0
    assert pool.try_take() is None
    pool._claimed.clear()
    assert pool.try_take() is slot
    assert SlotPool([slot]).free == 1


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("CUDA error: an illegal memory access was encountered", DeviceLost),
        ("CUDA error: device-side assert triggered\nCompile with ...", DeviceLost),
        ("CUDA error: unspecified launch failure", DeviceLost),
        ("CUDA error: uncorrectable ECC error encountered", DeviceLost),
        ("mat1 and mat2 shapes cannot be multiplied", RuntimeError),
        ("CUDA error: invalid configuration argument", RuntimeError),
    ],
)
def test_errors_after_which_the_device_is_lost_are_told_from_others(
    text: str, kind: type[Exception]
) -> None:
    assert type(translated(RuntimeError(text))) is kind


def test_memory_that_ran_out_is_an_error_of_its_own_and_the_next_run_works(opened: Open) -> None:
    class Hungry(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if len(x) > 4:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return x.sum(1, keepdim=True)

    backend = opened(Hungry(), options=GraphOptions(buckets=()))
    with pytest.raises(OutOfMemory) as caught:
        backend.run({"x": np.ones((5, 4), np.float32)}, {})
    assert caught.value.reason == "OUT_OF_MEMORY"
    assert run(backend, 4, 4)
    assert backend.free == 1


@pytest.mark.parametrize(
    ("got", "wanted", "off"),
    [([1.0, 2.0], [1.0, 2.0], 0.0), ([1.0, 2.2], [1.0, 2.0], 0.1),
     ([float("nan"), 1.0], [0.0, 1.0], float("inf")), ([float("inf")], [float("inf")], 0.0)],
)  # fmt: skip
def test_difference_is_relative_to_the_largest_and_never_forgives_nan(
    got: list[float], wanted: list[float], off: float
) -> None:
    assert difference(torch.tensor(got), torch.tensor(wanted)) == pytest.approx(off, abs=1e-6)


def test_the_precision_is_that_of_the_weights() -> None:
    config = text_format.Parse(
        "input { name: 'x' data_type: TYPE_FP32 dims: [4] } "
        "output { name: 'y' data_type: TYPE_FP32 dims: [1] }",
        ModelConfig(),
    )
    for dtype, precision in (
        (torch.float32, "FP32"),
        (torch.float16, "FP16"),
        (torch.bfloat16, "BF16"),
    ):
        module = torch.nn.Linear(4, 1).to(dtype)
        assert named(config, Opened(module, ("input",))).precision == precision
    assert named(config, Opened(Sums(), ("x",))).precision == "FP32"
