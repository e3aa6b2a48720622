"""The front door lives beside tritonclient, whichever is imported first."""

import subprocess
import sys

import pytest

OURS = "import sits_preprocess.front, sits_preprocess.app"
THEIRS = "import tritonclient.grpc, tritonclient.grpc.aio"
CHECK = """
from sits_protos.oip.grpc_service_pb2 import ModelInferRequest as ours
from tritonclient.grpc.service_pb2 import ModelInferRequest as theirs
assert ours is not theirs
assert theirs.FromString(ours(id="ž").SerializeToString()).id == "ž"
"""


@pytest.mark.parametrize("order", [(OURS, THEIRS), (THEIRS, OURS)])
def test_both_orders_work(order: tuple[str, str]) -> None:
    program = "\n".join((*order, CHECK))
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=60)
