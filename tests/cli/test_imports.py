"""The command answers soon: what few of its calls need is imported by those."""

import subprocess
import sys

SLOW = {"numpy", "onnxruntime", "prometheus_client", "redis", "tritonclient"}


def test_slow_libraries_are_left_to_who_needs_them() -> None:
    program = "import sys, sits_cli.main; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout.split()
    assert SLOW & {*loaded} == set()
