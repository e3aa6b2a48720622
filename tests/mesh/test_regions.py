"""Clients' own shared memory through the whole mesh, beside inline tensors (OIP-01)."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.utils.shared_memory as shm

from sits_cli.mesh import Mesh
from sits_cli.testing_mesh import Array, tensor

pytestmark = pytest.mark.mesh

P, Q = np.arange(8, dtype=np.float32).reshape(2, 4), np.full((2, 3), 7.5, np.float32)
TIMEOUT_S = 20
Client = triton.InferenceServerClient


@pytest.fixture
def client(solo: Mesh) -> Iterator[Client]:
    with Client(solo.addresses.front) as made:
        yield made


@contextmanager
def region(client: Client, name: str, size: int) -> Iterator[object]:
    key = f"/{name}-of-test-regions"
    handle = shm.create_shared_memory_region(name, key, size)
    client.register_system_shared_memory(name, key, size)
    try:
        yield handle
    finally:
        client.unregister_system_shared_memory(name)
        shm.destroy_shared_memory_region(handle)


def inputs() -> list[triton.InferInput]:
    return [tensor(P, name="P"), tensor(Q, name="Q")]


@pytest.mark.parametrize(("shared", "inline"), [(("A", P), ("B", Q)), (("B", Q), ("A", P))])
def test_one_output_in_a_region_and_the_other_inline(
    client: Client, shared: tuple[str, Array], inline: tuple[str, Array]
) -> None:
    """One raw entry an output, in the order asked for, empty for the one in the region."""
    name, expected = shared
    wanted = [triton.InferRequestedOutput("A"), triton.InferRequestedOutput("B")]
    with region(client, "out", expected.nbytes) as handle:
        wanted["AB".index(name)].set_shared_memory("out", expected.nbytes)
        result = client.infer("pair", inputs(), outputs=wanted, client_timeout=TIMEOUT_S)
        found = shm.get_contents_as_numpy(handle, np.float32, expected.shape)
        assert np.array_equal(found, expected)
    raw = list(result.get_response().raw_output_contents)
    assert raw["AB".index(name)] == b""
    assert raw["AB".index(inline[0])] == inline[1].tobytes()
    assert np.array_equal(result.as_numpy(inline[0]), inline[1])


def test_an_input_in_a_region_beside_one_inline(client: Client) -> None:
    with region(client, "in", P.nbytes) as handle:
        shm.set_shared_memory_region(handle, [P])
        first, second = inputs()
        first = triton.InferInput("P", P.shape, "FP32")
        first.set_shared_memory("in", P.nbytes)
        result = client.infer("pair", [first, second], client_timeout=TIMEOUT_S)
    assert np.array_equal(result.as_numpy("A"), P)
    assert np.array_equal(result.as_numpy("B"), Q)
