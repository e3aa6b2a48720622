"""Either end of a pair of rings may be killed at any moment; see bench/ring_soak.py."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sits_channel import ring

SOAK = Path(__file__).parents[2] / "bench" / "ring_soak.py"
ROUNDS = 300


@pytest.mark.skipif(not ring.available(), reason="the C core is not compiled")
def test_kills_at_random_moments_leave_no_torn_message_no_stuck_end_and_no_file() -> None:
    command = [sys.executable, str(SOAK), "--rounds", str(ROUNDS), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    values = {f["figure"]: f["value"] for f in json.loads(done.stdout)["figures"]}
    assert values["rounds"] == ROUNDS
    assert values["messages read by survivors"] > ROUNDS
