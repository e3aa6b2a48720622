"""`sits models load` and `unload`: on all executors, with an end that is told."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from sits_cli.testing import FakeControl, peer
from sits_core.errors import NotFound
from sits_protos.v1 import control_pb2 as pb
from sits_protos.v1.link_pb2 import ModelEntry, ModelState, Role

Sits = Callable[..., Any]
Serve = Callable[..., str]


@dataclass
class Loading(FakeControl):
    """A dispatcher of two executors that can load `mlp`."""

    configs: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state.peers.extend(peer(Role.ROLE_EXECUTOR, f"10.0.0.{n}:8020") for n in (1, 2))
        self.state.peers.append(peer(Role.ROLE_PREPROCESS, "10.0.0.3:8003"))

    def LoadModel(
        self, request: pb.LoadModelRequest, context: grpc.ServicerContext
    ) -> pb.LoadModelResponse:
        if request.model != "mlp":
            raise NotFound(f"no model '{request.model}' in the repository")
        self.configs.append(request.config_json)
        self._become(ModelState.MODEL_STATE_READY)
        return pb.LoadModelResponse()

    def UnloadModel(
        self, request: pb.UnloadModelRequest, context: grpc.ServicerContext
    ) -> pb.UnloadModelResponse:
        self._become(ModelState.MODEL_STATE_UNAVAILABLE, "unloaded")
        return pb.UnloadModelResponse()

    def _become(self, state: ModelState.ValueType, reason: str = "") -> None:
        del self.state.models[:]
        self.state.models.append(ModelEntry(name="mlp", version="1", state=state, reason=reason))
        self.state.models.append(ModelEntry(name="other", version="1", state=state))


def test_a_loaded_model_is_told_with_its_versions(sits: Sits, serve: Serve) -> None:
    outcome = sits("models", "load", "mlp", "--dispatcher", serve(Loading()))
    assert outcome.status == 0
    assert outcome.out.startswith("mlp loaded on 2 executors in ")
    assert outcome.out.strip().endswith(": version 1 ready")


def test_an_unloaded_model_is_told_in_json(sits: Sits, serve: Serve) -> None:
    address = serve(Loading())
    told = json.loads(sits("models", "unload", "mlp", "--dispatcher", address, "--json").out)
    assert told.pop("took_s") >= 0
    assert told == {
        "model": "mlp", "action": "unloaded", "executors": 2,
        "versions": [{"version": "1", "state": "unavailable", "reason": "unloaded"}],
    }  # fmt: skip


def test_a_configuration_may_take_the_place_of_the_models_own(
    sits: Sits, serve: Serve, tmp_path: Path
) -> None:
    control, config = Loading(), tmp_path / "config.json"
    config.write_text('{"max_batch_size": 4}')
    address = serve(control)
    assert (
        sits("models", "load", "mlp", "--config", str(config), "--dispatcher", address).status == 0
    )
    assert control.configs == ['{"max_batch_size": 4}']


def test_a_model_that_cannot_be_loaded_says_why(sits: Sits, serve: Serve) -> None:
    outcome = sits("models", "load", "nope", "--dispatcher", serve(Loading()))
    assert (outcome.status, outcome.out) == (1, "")
    assert "no model 'nope' in the repository (NOT_FOUND)" in outcome.err


def test_a_model_that_is_not_there_is_told_with_those_like_it(sits: Sits, serve: Serve) -> None:
    control = Loading()
    control.state.models.add(name="mlp", version="1")
    outcome = sits("models", "load", "mpl", "--dispatcher", serve(control))
    assert "no model 'mpl' in the repository: did you mean mlp? (NOT_FOUND)" in outcome.err


@pytest.mark.parametrize("verb", ["load", "unload"])
def test_nobody_there_says_what_to_do(sits: Sits, verb: str) -> None:
    outcome = sits("models", verb, "mlp", "--dispatcher", "127.0.0.1:1")
    assert outcome.status == 1
    assert "start a mesh with `sits up`" in outcome.err


def test_without_the_token_one_is_told_to_set_it(
    sits: Sits, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = serve(Loading(), tokens=("secret",))
    assert "SITS_ADMIN_TOKEN" in sits("models", "load", "mlp", "--dispatcher", address).err
    monkeypatch.setenv("SITS_ADMIN_TOKEN", "secret")
    assert sits("models", "load", "mlp", "--dispatcher", address).status == 0
