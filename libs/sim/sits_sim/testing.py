"""Small clusters and short runs for tests: each takes a second or two."""

import numpy as np

from sits_scheduling.batching import BatchPolicy
from sits_sim.cluster import Cluster, mixed
from sits_sim.load import poisson
from sits_sim.mesh import Mesh, Plan
from sits_sim.service_times import TRANSFORMER
from sits_sim.workload import Workload, workload

FRONTS = 4
REQUESTS = 3000


def small_cluster() -> Cluster:
    return mixed(16)


def requests(load: float, seed: int = 1, count: int = REQUESTS) -> Workload:
    """Single rows at `load` times what 16 devices can do without batches."""
    rng = np.random.default_rng(seed)
    rate = load * 16 * 1e6 / TRANSFORMER.median_us[0]
    at_s = poisson(rate, count / rate, rng)
    rows = np.ones(len(at_s), np.int64)
    return workload(at_s, rows, bytes_per_row=1024, fronts=FRONTS, rng=rng, slo_s=0.002)


def batched(strategy: str = "topo_aware", seed: int = 1, *, admission: bool = False) -> Plan:
    policy = BatchPolicy(TRANSFORMER.max_rows)
    return Plan(strategy, policy, slots=3, fronts=FRONTS, admission=admission, seed=seed)


def mesh(load: Workload, plan: Plan) -> Mesh:
    return Mesh(small_cluster(), TRANSFORMER, load, plan)
