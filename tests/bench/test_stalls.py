"""What a stalling mesh is told from a machine that stood still by."""

from dataclasses import replace

import stalls

from sits_bench.loadgen import Latencies, Measured, Stall

NONE = Latencies(0, 0, 0, 0, 0, 0, 0, 0)
OWN = Stall(at_s=1.0, ms=50.0, open=70, slowed=1.4, apart_ms=3.0)
MACHINE = OWN._replace(ms=80.0, slowed=13.0)
CALM = Measured(
    1, 100, 0, 100, replace(NONE, count=100, p50=10, p99=15), NONE, NONE, NONE, {}, 0, 0, 0, 0.1,
    1.0, 1.0, "",
)  # fmt: skip
HELD_BACK = replace(CALM, answered=replace(CALM.answered, p99=90), stalls=[MACHINE])
STALLED = replace(HELD_BACK, stalls=[OWN])


def holding(*rounds: Measured) -> dict[str, bool | None]:
    return {row.figure.partition(":")[0]: row.holds for row in stalls.figures(rounds)}


def test_a_machine_that_stood_still_is_no_verdict_on_the_mesh() -> None:
    found = holding(CALM, HELD_BACK)
    assert found["stalls.calm"] is True
    assert found["stalls.own"] is True


def test_a_stall_while_the_machine_ran_on_is_the_mesh_s() -> None:
    found = holding(CALM, STALLED, STALLED)
    assert found["stalls.calm"] is False
    assert found["stalls.own"] is False


def test_without_a_round_in_which_the_machine_ran_on_there_is_no_tail_to_judge() -> None:
    assert "stalls.calm" not in holding(HELD_BACK)
