"""What surrounds the measuring: messages, rounds, groups, steps, shapes."""

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sits_bench import compare, loadgen, mesh_system, peers, shapes, suite
from sits_bench.compare import Found, Plan, Trial
from sits_bench.group import Bench
from sits_bench.loadgen import BenchError, Latencies, Load, Measured
from sits_bench.messages import Inference, Region, random_floats
from sits_bench.onnx_models import MLP
from sits_bench.steps import steps
from sits_bench.system import Running
from sits_core.settings import SERVICES, Settings
from sits_protos.oip.grpc_service_pb2 import ModelInferRequest
from sits_sim.figures import Figure, plain

NONE = Latencies(0, 0, 0, 0, 0, 0, 0, 0)


def measured(per_s: float = 100.0, refused: int = 0) -> Measured:
    ok = Latencies(100, 1, 1, 1, 1, 1, 1, 1)
    bad = Latencies(refused, 1, 1, 1, 1, 1, 1, 1)
    return Measured(1, 100, refused, per_s, ok, bad, NONE, NONE, {}, 0, 0, 0, 0.1, 1.0, 1.0, "no")


class Silent:
    def expect(self, seconds: float) -> None: ...
    def step(self, text: str, seconds: float) -> None: ...


@dataclass(frozen=True)
class Named:
    name: str

    @contextmanager
    def start(self) -> Iterator[Running]:
        yield Running(self.name, list)


def test_a_request_names_its_regions_instead_of_bringing_bytes() -> None:
    inference = Inference(
        "m",
        {"INPUT": random_floats(1, 2, 4)},
        {"sits_tenant": "gold"},
        input_regions={"INPUT": Region("in", 32)},
        output_regions={"OUTPUT": Region("out", 16)},
    )
    message = ModelInferRequest.FromString(inference.grpc())
    assert not message.raw_input_contents
    assert list(message.inputs[0].shape) == [2, 4]
    assert message.inputs[0].parameters["shared_memory_region"].string_param == "in"
    assert message.outputs[0].parameters["shared_memory_byte_size"].int64_param == 16
    assert message.parameters["sits_tenant"].string_param == "gold"


def test_every_round_starts_with_another_system(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def run(_load: Load, target: str, *_args: object, **_more: object) -> Measured:
        order.append(target)
        return measured(len(order))

    monkeypatch.setattr(loadgen, "run", run)
    load = Load(Path("r"), in_flight=1)
    trials = [Trial(Named(name), {"x": load}, lambda _running: None) for name in "abc"]
    found = compare.alternate(trials, 3, Silent())
    assert "".join(order) == "abcbcacab"
    assert found.median("a", "x", compare.per_s) == 6  # of 1, 6 and 8


def test_a_closed_loop_with_failures_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loadgen, "run", lambda *_args, **_more: measured(refused=1))
    with pytest.raises(BenchError, match="1 of 101 requests failed"):
        compare.steady(Running("t", list), Load(Path("r"), in_flight=1))


@dataclass(frozen=True)
class Group:
    name: str
    error: bool = False

    def seconds(self, plan: Plan) -> float:
        return 1.0

    def run(self, bench: Bench) -> list[Figure]:
        if self.error:
            raise BenchError("it broke")
        return [plain(f"{self.name}.x: text", 1, ""), plain(f"{self.name}.y: text", 1, "")]


@pytest.mark.usefixtures("loadgen_built")
def test_a_group_that_fails_does_not_take_the_others_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "GROUPS", (Group("a", error=True), Group("b")))
    bench, figures = suite.run(Plan(), Silent())
    assert bench.failures == ["a: it broke"]
    assert [figure.figure for figure in figures] == ["b.x: text", "b.y: text"]


@pytest.mark.usefixtures("loadgen_built")
def test_only_what_is_named_is_measured_and_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "GROUPS", (Group("a", error=True), Group("b")))
    bench, figures = suite.run(Plan(), Silent(), ["b.y"])
    assert not bench.failures
    assert [figure.figure for figure in figures] == ["b.y: text"]
    with pytest.raises(BenchError, match="there are a, b"):
        suite.chosen(["c.x"])


def test_groups_have_names_of_their_own() -> None:
    names = [group.name for group in suite.GROUPS]
    assert len(set(names)) == len(names)


def test_all_of_it_takes_no_longer_than_it_may(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SITS_CLI_BENCH_PEERS", str(tmp_path))
    for peer in peers.NAMES:
        peers.environment(peer).mkdir()
        peers.mark_installed(peer)
    full = sum(group.seconds(compare.FULL) for group in suite.GROUPS)
    quick = sum(group.seconds(compare.QUICK) for group in suite.GROUPS)
    assert full < 40 * 60
    assert quick < 14 * 60


def test_a_peer_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SITS_CLI_BENCH_PEERS", str(tmp_path))
    assert peers.missing() == list(peers.NAMES)
    peers.environment("mosec").mkdir()
    peers.mark_installed("mosec")
    assert "mosec" not in peers.missing()


def test_the_ladder_has_17_steps_and_each_changes_something() -> None:
    rungs = steps()
    assert len(rungs) + 1 == 17
    for before, after in pairwise(rungs):
        assert before != after


def known_settings() -> set[str]:
    modules = [importlib.import_module(f"sits_{service}.settings") for service in SERVICES]
    classes = [c for module in modules for c in vars(module).values() if isinstance(c, type)]
    fields = [f for c in classes if issubclass(c, Settings) for f in c.model_fields]
    return {f"SITS_{field.upper()}" for field in fields}


def test_configurations_name_settings_that_exist() -> None:
    configurations: list[Mapping[str, str]] = [
        mesh_system.BEST, mesh_system.FORCE_GRPC, mesh_system.INLINE,
        *(step.env for step in steps()),
    ]  # fmt: skip
    named = {name for env in configurations for name in env if name.startswith("SITS_")}
    assert named <= known_settings()


@pytest.mark.parametrize("name", shapes.SHAPES)
def test_a_shape_keeps_its_rate_and_its_rows(name: str) -> None:
    shape = shapes.SHAPES[name](1000.0, 30.0, np.random.default_rng(1))
    assert abs(len(shape.at_s) / 30_000 - 1) < 0.1
    assert (np.diff(shape.at_s) >= 0).all()
    inferences, which = shape.inferences(MLP.sample(1), "mlp")
    rows = [len(inference.inputs["INPUT"]) for inference in inferences]
    assert [rows[i] for i in which[:100]] == list(shape.rows[:100])
    assert [inferences[i].kind for i in which[:100]] == list(shape.kind[:100])


def test_a_noisy_neighbour_leaves_tenants_their_names() -> None:
    shape = shapes.noisy_neighbour(100.0, 10.0, np.random.default_rng(1))
    inferences, _ = shape.inferences(MLP.sample(1), "mlp")
    named: list[Any] = [inference.parameters["sits_tenant"] for inference in inferences]
    assert named == list(shapes.TENANTS)


def test_medians_are_of_the_runs_of_one_load() -> None:
    found = Found()
    for per_s in (3.0, 1.0, 2.0):
        found.add("a", "x", measured(per_s))
    found.add("a", "y", measured(100.0))
    assert found.median("a", "x", compare.per_s) == 2.0
