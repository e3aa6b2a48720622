"""Settings of the topology service: the shared ones and its own."""

from pydantic import Field

from sits_core.registry import TOPOLOGY_PERIOD_S
from sits_core.settings import Address, Settings


class TopologySettings(Settings):
    topology_bind: Address = Field(
        default="127.0.0.1:8030", description="host:port of Topology and Control"
    )
    topology_metrics_bind: Address = Field(
        default="127.0.0.1:8031", description="host:port of Prometheus /metrics"
    )
    topology_source: str = Field(
        default="auto",
        min_length=1,
        description="auto (NVML where there is a driver, else sysfs), nvml, sysfs, or a file with "
        "`nvidia-smi topo -m` text or NCCL topology XML of a machine to imitate",
    )
    topology_period_s: float = Field(
        default=TOPOLOGY_PERIOD_S,
        gt=0,
        le=10,
        description="seconds between publications; what is published lives for 15",
    )
    topology_measured: str = Field(
        default="",
        description="file of `sits probe` whose bandwidths replace nominal ones; empty = none",
    )
    topology_measured_max_age_s: float = Field(
        default=30 * 86_400.0,
        gt=0,
        description="seconds after which a measurement no longer counts",
    )
