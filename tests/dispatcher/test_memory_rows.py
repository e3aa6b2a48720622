"""Micro-batches fit into the free memory of the GPU that they run on (D2)."""

import pytest

from sits_core.metrics import ProcessRegistry
from sits_core.settings import load
from sits_core.testing import MemoryRegistry
from sits_core.tracing import Tracer
from sits_dispatcher.app import build_mesh, hello
from sits_dispatcher.memory_rows import free_memory, row_bytes, row_limit
from sits_dispatcher.mesh import Mesh
from sits_dispatcher.settings import DispatcherSettings
from sits_dispatcher.testing import Wire
from sits_protos.oip.model_config_pb2 import DataType, ModelConfig, ModelInput, ModelOutput
from sits_protos.v1.link_pb2 import Catalog, Hello, LinkMessage, ModelEntry, ModelState, Role
from sits_protos.v1.topology_pb2 import Device, DeviceKind, TopologySnapshot

MIB = 1 << 20
GPU = "GPU-1"


def config(*dims: int, max_batch: int = 64, said: str = "") -> ModelConfig:
    made = ModelConfig(
        name="m", max_batch_size=max_batch,
        input=[ModelInput(name="x", data_type=DataType.TYPE_FP32, dims=dims)],
        output=[ModelOutput(name="y", data_type=DataType.TYPE_FP32, dims=[1024])],
    )  # fmt: skip
    if said:
        made.parameters["row_bytes"].string_value = said
    return made


def entry(made: ModelConfig, own: int = 0, instances: int = 1) -> ModelEntry:
    return ModelEntry(
        name="m", version="1", state=ModelState.MODEL_STATE_READY, slots=2, instances=instances,
        micro_batch_rows=own, config=made.SerializeToString(),
    )  # fmt: skip


def snapshot(at_ns: int, **memory: int) -> TopologySnapshot:
    device = Device(id=GPU, kind=DeviceKind.DEVICE_KIND_GPU, **memory)
    return TopologySnapshot(host="h", published_unix_ns=at_ns, devices=[device])


def test_a_row_is_its_inputs_and_outputs_unless_the_model_says_more() -> None:
    assert row_bytes(config(3, 1024)) == 4 * 4096
    assert row_bytes(config(3, 1024, said="1000000")) == 1_000_000
    assert row_bytes(config(-1)) == 0


@pytest.mark.parametrize(
    ("free_mib", "own", "instances", "rows"),
    [(1000, 0, 1, 0), (30, 0, 1, 24), (30, 16, 1, 16), (30, 0, 2, 8), (10, 0, 1, 8), (5, 0, 1, 4)],
)
def test_rows_are_what_fits_in_eights(free_mib: int, own: int, instances: int, rows: int) -> None:
    found = entry(config(1, said=str(MIB)), own, instances)
    assert row_limit(found, free_mib * MIB) == rows


def test_rows_of_unknown_size_and_models_without_batches_keep_their_own_limit() -> None:
    assert row_limit(entry(config(-1), own=16), MIB) == 16
    assert row_limit(entry(config(1, max_batch=0)), MIB) == 0


def test_devices_that_do_not_tell_have_no_entry() -> None:
    assert free_memory([snapshot(1)]) == {}
    assert free_memory([snapshot(1, memory_total_bytes=9, memory_free_bytes=0)]) == {GPU: 0}


@pytest.fixture
def mesh() -> Mesh:
    """One executor on a GPU, with a model of which a row takes a MiB."""
    settings = load(DispatcherSettings, "dispatcher", {})
    made = build_mesh(settings, hello(settings), Tracer("dispatcher", 100, 0.0), ProcessRegistry())
    made.registry = MemoryRegistry()
    link = Wire()
    made.executors.opened(link)
    for message in (
        LinkMessage(hello=Hello(role=Role.ROLE_EXECUTOR, id="e", device=GPU)),
        LinkMessage(catalog=Catalog(models=[entry(config(1, said=str(MIB)))])),
    ):
        made.executors.received(link, message.SerializeToString())
    return made


def test_limits_follow_what_topology_publishes(mesh: Mesh) -> None:
    table, registry = mesh.dispatcher.table, mesh.registry
    assert registry is not None
    assert table.row_limit("m/1") == 0
    for at_ns, free, rows in ((1, 30, 24), (2, 12, 8), (3, 500, 0)):
        memory = {"memory_total_bytes": 1000 * MIB, "memory_free_bytes": free * MIB}
        registry.publish_topology(snapshot(at_ns, **memory))
        mesh.poll_registry()
        assert table.row_limit("m/1") == rows
        assert table.capacity("m/1")[:2] == (2, 1)
