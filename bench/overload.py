"""Twice the capacity from three tenants: Gold keeps its SLO, shed requests hear it at once."""

from sits_bench import machine, tenants_overload
from sits_bench.loadgen import build
from sits_bench.show import finish, main, options
from sits_bench.watching import watching
from sits_sim.figures import Report

ROUNDS = 3
WARM_UP_S, SECONDS, QUICK_SECONDS = 3.0, 12.0, 5.0
CAPACITY_S = 3.0


def body() -> int:
    parser = options(__doc__)
    parser.add_argument("--dispatchers", type=int, default=1, help="of the mesh (1)")
    given = parser.parse_args()
    rounds, seconds = (1, QUICK_SECONDS) if given.quick else (ROUNDS, SECONDS)
    parameters = {
        **machine.describe(),
        "rounds": rounds,
        "seconds": seconds,
        "dispatchers": given.dispatchers,
    }
    build()
    found, raw = [], []
    with (
        watching() as progress,
        tenants_overload.system(given.dispatchers).running() as (mesh, running),
    ):
        progress.expect(CAPACITY_S + rounds * (WARM_UP_S + seconds))
        capacity = tenants_overload.capacity(running, 1.0, CAPACITY_S)
        progress.step("capacity", CAPACITY_S)
        for number in range(rounds):
            measured, asked = tenants_overload.overload(
                running, capacity.per_s, WARM_UP_S, seconds, number
            )
            left = tenants_overload.left_when_idle(mesh)
            found.append(tenants_overload.figures(measured, asked, capacity.per_s, left))
            raw.append({"statuses": measured.statuses, "asked": asked})
            progress.step(f"round {number + 1}", WARM_UP_S + seconds)
    report = Report(parameters, tenants_overload.worst(found))
    return finish("overload", report, given, raw=raw)


if __name__ == "__main__":
    main(body)
