"""An import in the middle of serving holds every thread up, a large one for 50 ms and more."""

import subprocess
import sys

DECISIONS = """
import sys
from sits_scheduling.knee import Knee
from sits_scheduling.outcomes import Outcome
from sits_scheduling.outliers import Outliers

knee, outliers = Knee(), Outliers()
there = set(sys.modules)
for _ in range(30):
    for step in range(20):
        knee.observe(step / 20, 1.0)
    for executor in "abc":
        outliers.observe(executor, Outcome.SUCCESS)
knee.load()
outliers.evaluate(1)
print(*sorted(set(sys.modules) - there))
"""


def test_a_decision_imports_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", DECISIONS], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []
