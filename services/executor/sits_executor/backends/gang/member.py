"""What runs in each process of a gang: its part of the model, and the sums with the others."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist

from sits_core.datatypes import Array
from sits_executor.backends.base import LoadError, LoadSpec
from sits_executor.backends.gang import wire
from sits_executor.backends.gang.splits import Share, split_of
from sits_executor.backends.pytorch.archives import open_model
from sits_executor.backends.pytorch.model import Model, named
from sits_executor.backends.pytorch.tensors import TORCH_TYPES, as_array, copied
from sits_executor.safe import safe_cause
from sits_protos.oip.model_config_pb2 import ModelConfig

_PRECISIONS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Job:
    """What a member is told. `devices` by rank as topology names them; empty = CPU, for tests.
    `meeting` is a file that none of them made yet."""

    model: str
    directory: str
    filename: str
    config: bytes
    devices: Sequence[str]
    size: int
    threads: int
    meeting: str


def serve(rank: int, job: Job, pipe: "Connection[bytes, bytes]") -> None:
    """Until it is told to stop, or whoever told it is gone."""
    try:
        member = _Member(rank, job, pipe)
        wire.send(pipe, {"ready": True})
    except Exception as error:  # noqa: BLE001 - whatever a load can raise ends up in its text
        cause = str(error) if isinstance(error, LoadError) else safe_cause(error)
        wire.send(pipe, {"error": cause})
        return
    try:
        member.loop()
    except EOFError:
        return
    finally:
        dist.destroy_process_group()


class _Member:
    def __init__(self, rank: int, job: Job, pipe: "Connection[bytes, bytes]") -> None:
        self._rank, self._pipe = rank, pipe
        # All of the gang and nobody else, so that the rank is CUDA's number.
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(job.devices)
        self._device = torch.device("cuda", rank) if job.devices else torch.device("cpu")
        if job.devices:
            torch.cuda.set_device(self._device)
        torch.set_num_threads(max(1, job.threads))
        dist.init_process_group(
            "nccl" if job.devices else "gloo",
            init_method=job.meeting, rank=rank, world_size=job.size,
            device_id=self._device if job.devices else None,
        )  # fmt: skip
        self._model = self._open(job)

    def _open(self, job: Job) -> Model:
        """The whole model in host memory, then this member's part of it on its device."""
        spec = _spec(job)
        precision = _PRECISIONS.get(spec.parameter("precision").lower())
        whole = open_model(spec, torch.device("cpu"), precision)
        split = split_of(spec.parameter("module"))
        part = split(whole.module, Share(self._rank, job.size), _sum)
        return named(spec.config, whole._replace(module=part.to(self._device).eval()))

    def loop(self) -> None:
        while (header := wire.receive(self._pipe)) is not None:
            try:
                outputs = self._run(header)
            except Exception as error:  # noqa: BLE001 - the run failed, whatever it was
                wire.send(self._pipe, {"error": safe_cause(error)})
                continue
            if self._rank == 0:
                wire.send(self._pipe, wire.header_of(outputs))
                wire.send_arrays(self._pipe, outputs)

    @torch.inference_mode()
    def _run(self, header: wire.Header) -> Mapping[str, Array]:
        """The first member has the inputs and gives them to the others over the links."""
        if self._rank == 0:
            arrays = wire.receive_arrays(self._pipe, header)
            inputs = {n: copied(array).to(self._device) for n, array in arrays.items()}
        else:
            inputs = {e["name"]: self._room(e) for e in header["arrays"]}
        for tensor in inputs.values():
            dist.broadcast(tensor, src=0)
        results = self._model(inputs)
        return {name: as_array(t.cpu()) for name, t in results.items()} if self._rank == 0 else {}

    def _room(self, entry: wire.Header) -> torch.Tensor:
        dtype = TORCH_TYPES[entry["datatype"]]
        return torch.empty(entry["shape"], dtype=dtype, device=self._device)


def _sum(tensor: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(tensor)
    return tensor


def _spec(job: Job) -> LoadSpec:
    return LoadSpec(
        model=job.model,
        version="",
        directory=Path(job.directory),
        filename=job.filename,
        config=ModelConfig.FromString(job.config),
        instances=1,
        threads=job.threads,
        gpu=None,
    )
