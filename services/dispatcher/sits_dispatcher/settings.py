"""Settings of the dispatcher."""

from typing import Literal

from pydantic import Field

from sits_core.settings import Address, Addresses, CpusOrAuto, Settings


class DispatcherSettings(Settings):
    """See README.md for the table; names are shared with compose and the chart."""

    dispatcher_bind: Address = Field(
        default="127.0.0.1:8010", description="gRPC: Dispatch, Control"
    )
    dispatcher_admin_bind: Address = Field(
        default="127.0.0.1:8080", description="HTTP: admin calls, /metrics"
    )
    dispatcher_python_cpus: CpusOrAuto = Field(
        default="",
        description="processors for the threads that run Python, best a single one that nobody "
        "else keeps busy; `auto` = one of its own while it is busy, for machines that serve "
        "nothing else; unset = all",
    )
    dispatcher_slo_ms: str = Field(
        default="gold=200,silver=500,bronze=1000",
        pattern=r"^([^=,]+=\d+(\.\d+)?(,[^=,]+=\d+(\.\d+)?)*)?$",
        description="what tenants are judged by on the page: TENANT=MILLISECONDS, comma list; * is "
        "all others",
    )
    dispatcher_executors: Addresses = Field(
        default="", description="executor addresses besides those found through Redis, comma list"
    )
    dispatcher_strategy: Literal[
        "random", "round_robin", "least_loaded", "power_of_two", "topo_aware",
        "deadline", "fifo", "priority",
    ] = Field(default="topo_aware", description="strategy until it is switched")  # fmt: skip
    dispatcher_max_pending: int = Field(
        default=1024, ge=1, description="micro-batches that may wait for a free executor"
    )
    dispatcher_wait_s: float = Field(
        default=5.0,
        ge=0,
        description="seconds a micro-batch waits for an executor of its model",
    )
    dispatcher_governance: bool = Field(
        default=True,
        description="act on bad signals: smaller batches, cheaper versions, shed tiers; false = "
        "watch and tell only",
    )
    dispatcher_governance_period_s: float = Field(
        default=1.0,
        ge=0.05,
        le=60,
        description="seconds between two looks at the signals of governance",
    )
    dispatcher_max_moves: int = Field(
        default=2, ge=0, description="times a micro-batch moves on when its executor is lost"
    )
    dispatcher_jitter_control: bool = Field(
        default=True,
        description="send more evenly and slowly to executors whose round trips tremble by 10 ms "
        "and more",
    )
    dispatcher_hedge_percent: float = Field(
        default=0.0,
        ge=0,
        le=50,
        description="micro-batches that may be tried a second time, at an idle executor, when they "
        "take longer than 95 % do; percent, 0 = none",
    )
