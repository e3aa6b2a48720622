"""A gang gives what one device gives, and ends as a whole when a member does."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this PyTorch has no torch.distributed", allow_module_level=True)

from sits_executor.backends.base import GangLost, LoadError  # noqa: E402 - after the skip
from sits_executor.backends.gang.backend import GangBackend  # noqa: E402
from sits_executor.backends.gang.member import Job  # noqa: E402
from sits_executor.backends.gang.splits import Share, split_encoder, split_of  # noqa: E402
from sits_executor.backends.pytorch.encoder import build  # noqa: E402
from sits_protos.oip.model_config_pb2 import ModelConfig  # noqa: E402

OPTIONS = {"layers": "2", "width": "32", "heads": "4", "vocabulary": "50", "positions": "16"}
IDS = np.arange(24, dtype=np.int64).reshape(3, 8)


def config(**parameters: str) -> ModelConfig:
    made = ModelConfig(name="parallel")
    made.input.add(name="input_ids", data_type="TYPE_INT64", dims=[-1])
    made.output.add(name="pooled", data_type="TYPE_FP32", dims=[32])
    given = {"module": "encoder", **{f"module.{k}": v for k, v in OPTIONS.items()}, **parameters}
    for key, value in given.items():
        made.parameters[key].string_value = value
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(7)
    path = tmp_path_factory.mktemp("parallel")
    torch.save(build(OPTIONS).state_dict(), path / "model.pt")
    return path


def job(folder: Path, size: int = 2, **parameters: str) -> Job:
    wanted = config(**parameters).SerializeToString()
    return Job("parallel", str(folder), "model.pt", wanted, (), size, 1, "")


def whole(folder: Path) -> torch.nn.Module:
    module = build(OPTIONS)
    module.load_state_dict(torch.load(folder / "model.pt", weights_only=True))
    return module.eval()


@pytest.fixture(scope="module")
def gang(folder: Path):
    backend = GangBackend(job(folder), start_s=100, run_s=30)
    yield backend
    backend.close()


# Parts


@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_sums_of_all_members_parts_are_the_whole(folder, size):
    """Sums in order over members that wait for each other stand for the collective."""
    expected = whole(folder)(torch.from_numpy(IDS))
    members = [split_encoder(whole(folder), Share(rank, size), lambda x: x) for rank in range(size)]
    assert torch.allclose(_run_together(members, torch.from_numpy(IDS)), expected, atol=1e-5)


def _run_together(members, ids):
    """What `Encoder.forward` does, with each sum taken over the members' parts."""
    first = members[0]
    x = first.tokens(ids) + first.positions.weight[: ids.shape[1]]
    for number in range(len(first.layers)):
        layers = [member.layers[number] for member in members]
        x = _layer(layers, x)
    return torch.tanh(first.pool(first.norm(x).mean(1)))


def _layer(layers, x):
    parts: list[torch.Tensor] = []
    answers: list[torch.Tensor] = []

    def collect(part):
        parts.append(part)
        return answers[len(parts) - 1] if len(answers) >= len(parts) else torch.zeros_like(part)

    for wanted in (1, 2):
        sums = []
        for layer in layers:
            parts.clear()
            layer._sum = collect
            layer(x)
            sums.append(parts[wanted - 1].clone())
        answers.append(torch.stack(sums).sum(0))
    parts.clear()
    layers[0]._sum = collect
    return layers[0](x)


def test_heads_that_cannot_be_divided_are_refused(folder):
    with pytest.raises(LoadError, match="4 heads cannot be divided among 8 GPUs"):
        split_encoder(whole(folder), Share(0, 8), lambda x: x)


def test_a_module_without_a_division_is_refused_by_name():
    with pytest.raises(LoadError, match="module 'perceptron' cannot be divided"):
        split_of("perceptron")


# Processes


def test_a_gang_gives_what_one_device_gives(gang, folder):
    found = gang.run({"input_ids": IDS}, {})["pooled"]
    expected = whole(folder)(torch.from_numpy(IDS)).detach().numpy()
    assert np.allclose(found, expected, atol=1e-5)


def test_every_run_has_its_own_inputs(gang):
    first = gang.run({"input_ids": IDS}, {})["pooled"]
    other = gang.run({"input_ids": IDS[:1] + 1}, {})["pooled"]
    assert other.shape == (1, 32)
    assert not np.allclose(first[:1], other)
    assert np.array_equal(gang.run({"input_ids": IDS}, {})["pooled"], first)


def test_a_gang_whose_member_dies_fails_that_batch_and_starts_anew(folder):
    backend = GangBackend(job(folder), start_s=100, run_s=30)
    try:
        first = backend.run({"input_ids": IDS}, {})["pooled"]
        seats = list(backend._seats)
        os.kill(seats[1].process.pid, signal.SIGKILL)
        seats[1].process.join()
        with pytest.raises(GangLost, match="the gang of model 'parallel' failed"):
            backend.run({"input_ids": IDS}, {})
        assert not any(seat.process.is_alive() for seat in seats)
        assert np.array_equal(backend.run({"input_ids": IDS}, {})["pooled"], first)
    finally:
        backend.close()


def test_a_closed_gang_leaves_no_process_behind(folder):
    backend = GangBackend(job(folder), start_s=100, run_s=30)
    seats = list(backend._seats)
    backend.close()
    assert not any(seat.process.is_alive() for seat in seats)


def test_what_a_member_cannot_load_is_said(folder):
    with pytest.raises(LoadError, match="no registered module 'nobody'"):
        GangBackend(job(folder, module="nobody"), start_s=100, run_s=30)


def test_an_executor_serves_a_gang_model_from_its_repository(linked, repository, folder):
    """On the CPU, as `instance_group` says; the size is checked where it is read."""
    from google.protobuf import text_format

    from sits_executor.testing import arrays_of, batch, write_model

    for name, size in (("parallel", "2"), ("odd", "3")):
        made = config(gang_size=size)
        made.name, made.backend, made.max_batch_size = name, "gang", 8
        made.input[0].dims[:] = [8]
        made.instance_group.add(kind="KIND_CPU", count=1)
        weights = {"1/model.pt": (folder / "model.pt").read_bytes()}
        write_model(repository, name, text_format.MessageToString(made), weights)
    with linked() as (_, dispatcher):
        dispatcher.wait_ready("parallel")
        result = dispatcher.run(batch(1, "parallel", [{"input_ids": IDS}]))
        expected = whole(folder)(torch.from_numpy(IDS)).detach().numpy()
        assert np.allclose(arrays_of(result)["pooled"], expected, atol=1e-5)
        assert (result.result.gang_runs, result.result.gang_failures) == (1, 0)
        (odd,) = [entry for entry in dispatcher.catalogs[-1].models if entry.name == "odd"]
        assert "parameter 'gang_size' is '3', expected one of 2, 4, 8" in odd.reason
