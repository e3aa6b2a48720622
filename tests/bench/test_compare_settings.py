"""Two meshes that differ in settings, as figures."""

from argparse import ArgumentTypeError
from dataclasses import replace

import compare_settings
import pytest

from sits_bench.loadgen import Latencies, Measured

NONE = Latencies(0, 0, 0, 0, 0, 0, 0, 0)
RUN = Measured(
    1, 100, 0, 100.0, replace(NONE, count=100, p50=10, p99=15), NONE, NONE, NONE, {}, 0, 0, 0, 0.1,
    70.0, 1.0, "",
)  # fmt: skip


def test_a_setting_is_a_name_of_ours_and_a_value_which_may_be_empty() -> None:
    assert compare_settings.variable("SITS_A=b=c") == ("SITS_A", "b=c")
    assert compare_settings.variable("SITS_A=") == ("SITS_A", "")
    for wrong in ("SITS_A", "PATH=x"):
        with pytest.raises(ArgumentTypeError, match=r"expected SITS_NAME=VALUE"):
            compare_settings.variable(wrong)


def test_the_median_of_one_stands_against_that_of_the_other() -> None:
    usual = [replace(RUN, per_s=value) for value in (90.0, 100.0, 500.0)]
    changed = [replace(RUN, per_s=value) for value in (1.0, 50.0, 60.0)]
    found = {
        (name, many): runs
        for name, runs in (("usual", usual), ("changed", changed))
        for many in compare_settings.IN_FLIGHT
    }
    rows = compare_settings.figures(found)
    first = next(row for row in rows if row.figure.startswith("requests/s, 64 in flight"))
    assert (first.value, first.reference, first.ratio) == (50.0, 100.0, 0.5)
    assert len(rows) == 4 * len(compare_settings.IN_FLIGHT)
