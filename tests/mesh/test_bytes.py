"""BYTES that are no text pass the whole mesh with debug lines and every request traced (OIP-04)."""

import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton

from sits_cli.mesh import Mesh
from sits_cli.testing_mesh import log_lines, tensor

pytestmark = pytest.mark.mesh

MB = 1 << 20
TIMEOUT_S = 20
ELEMENTS = [
    b"", b"\0", b"\xff\xfe", b"\xff\xd8\xff\xe0\0\x10JFIF", np.random.default_rng(4).bytes(MB),
    "žluť 🐎 \u202e".encode(), b"%s {0} \n\r", b"",
]  # fmt: skip
LISTED = np.array(ELEMENTS, dtype=object)


@pytest.fixture
def client(solo: Mesh) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(solo.addresses.front) as made:
        yield made


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        ("literal_bytes", (8,)),
        ("literal_column", (8, 1)),
        ("identity_bytes", (8, 1)),
        ("identity_bytes", (1, 8)),
    ],
)
def test_all_elements_come_back_in_order(
    client: triton.InferenceServerClient, model: str, shape: tuple[int, ...]
) -> None:
    sent = LISTED.reshape(shape)
    answer = client.infer(model, [tensor(sent, "BYTES")], client_timeout=TIMEOUT_S).as_numpy("Y")
    assert answer.shape == sent.shape
    assert answer.reshape(-1).tolist() == ELEMENTS


def test_a_pickle_is_only_bytes(client: triton.InferenceServerClient, tmp_path: Path) -> None:
    """SEC-03: nobody on the way opens it."""
    marker = tmp_path / "opened"

    class Crafted:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (marker,)  # type: ignore[return-value] # as an attacker would

    data = pickle.dumps(Crafted())
    sent = np.array([[data]], dtype=object)
    answer = client.infer("identity_bytes", [tensor(sent, "BYTES")], client_timeout=TIMEOUT_S)
    assert answer.as_numpy("Y").tolist() == [[data]]
    assert not marker.exists()


def test_the_requests_were_traced_and_debug_lines_were_on(solo: Mesh) -> None:
    """Else the rule above would say nothing about them."""
    assert solo.plan.env["SITS_TRACE_RATIO"] == "1"
    assert solo.plan.env["SITS_LOG_LEVEL"] == "debug"
    assert log_lines(solo, "preprocess", "otlp.enabled")
