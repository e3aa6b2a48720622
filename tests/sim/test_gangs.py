"""Jobs that need several GPUs at the same time."""

import numpy as np

from sits_sim.clock import Clock
from sits_sim.gangs import GangDevices, GangJob


def test_a_gang_starts_when_its_last_member_is_free() -> None:
    clock, ended = Clock(), {}
    devices = GangDevices(clock, 3)

    def job(number: int, members: list[int], run_ns: int) -> None:
        devices.submit(
            GangJob(number, members, run_ns, lambda: ended.update({number: clock.now_ns}))
        )

    job(0, [0], 100)
    job(1, [1], 300)
    job(2, [0, 1, 2], 50)
    job(3, [2], 10)
    clock.run()
    assert ended == {0: 100, 1: 300, 2: 350, 3: 360}


def test_gangs_never_wait_for_each_other_and_all_load_returns_to_zero() -> None:
    clock, rng = Clock(), np.random.default_rng(3)
    devices = GangDevices(clock, 16)
    released = []

    def submit(number: int) -> None:
        members = rng.choice(16, size=rng.choice([1, 2, 4, 8]), replace=False).tolist()
        run_ns = int(rng.integers(1, 1000))
        devices.submit(GangJob(number, members, run_ns, lambda: released.append(number)))

    for number in range(2000):
        clock.after(int(rng.integers(0, 400_000)), lambda n=number: submit(n))
    clock.run()
    assert sorted(released) == list(range(2000))
    assert devices.finished == 2000
    assert devices.loads_ms() == [0.0] * 16
