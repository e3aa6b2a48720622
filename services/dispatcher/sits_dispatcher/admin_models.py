"""What the admin API answers with, as its OpenAPI document shows it."""

from pydantic import BaseModel, ConfigDict, Field


class Answer(BaseModel):
    model_config = ConfigDict(frozen=True)


class Problem(Answer):
    """Every call that fails is answered with this."""

    error: str = Field(description="what is wrong")
    do: str = Field(description="what to do about it")


class Switched(Answer):
    previous: str
    current: str
    model: str = Field(description="empty: the strategy of all models without one of their own")


# The mesh


class Redis(Answer):
    configured: bool
    connected: bool
    age_s: float | None = Field(description="since Redis last answered; null = never")


class Executor(Answer):
    """An executor as this dispatcher sees it; the load is what this dispatcher put there."""

    id: str
    host: str
    device: str
    address: str
    transport: str = Field(
        description="how messages travel: grpc, or ring in shared memory; +shm = payloads there too"
    )
    draining: bool
    batches_in_flight: int
    rows_in_flight: int
    batches_total: int
    parallel: int = Field(description="batches that run at once; more than these wait there")
    slots: int = Field(description="batches that it takes at once, waiting ones included")


class Front(Answer):
    id: str
    host: str
    address: str
    transport: str


class ServedModel(Answer):
    name: str
    version: str
    state: str
    reason: str
    strategy: str = Field(description="the one in force for it")


class Limit(Answer):
    """Above this a signal asks for this level."""

    level: str
    above: float


class Signal(Answer):
    name: str
    value: float = Field(description="in the last sample")
    limits: list[Limit]


class Step(Answer):
    """Governance changed what it asks for."""

    at_unix_ms: int
    before: str
    after: str
    shed_tiers: list[str]
    cause: str = Field(description="the signal, its value and the limit that it crossed")


class Governance(Answer):
    """What is done about overload and faults: each level with all below it."""

    acts: bool = Field(description="false: it watches and tells only")
    level: str = Field(description="normal, scale_out, replace or degrade")
    scale_factor: float = Field(description="capacity wanted over capacity there is")
    shed_tiers: list[str] = Field(description="tiers of tenants that are refused")
    signals: list[Signal]
    steps: list[Step] = Field(description="the newest first")


class State(Answer):
    """The mesh as this dispatcher sees it."""

    version: str
    started_unix_ms: int
    strategy: str
    strategies: list[str]
    model_strategies: dict[str, str]
    redis: Redis
    topology_age_s: float | None = Field(description="of the newest weights; null = none seen")
    executors: list[Executor]
    fronts: list[Front]
    models: list[ServedModel]
    governance: Governance


# Topology


class Device(Answer):
    id: str
    kind: str
    name: str
    numa_node: int | None
    index: int | None = Field(description="in NVML's order; null = no GPU")
    memory_total_bytes: int | None
    memory_free_bytes: int | None
    utilization: float | None
    health: str
    health_reason: str


class Link(Answer):
    from_: str = Field(serialization_alias="from")
    to: str
    kind: str
    knowledge: str
    lanes: int | None
    bandwidth_gbps: float | None
    latency_us: float | None
    measured: bool


class Weight(Answer):
    """1 = as near as the device itself, towards 0 = far."""

    from_: str = Field(serialization_alias="from")
    to: str
    weight: float


class Host(Answer):
    host: str
    node_name: str
    version: int
    age_s: float
    sources: list[str]
    devices: list[Device]
    links: list[Link]
    weights: list[Weight]


class Topology(Answer):
    hosts: list[Host]


# Figures


class Traffic(Answer):
    """Of all front doors that are linked here. Null: nothing to tell it from."""

    requests_per_s: float | None
    outcomes_per_s: dict[str, float] = Field(description="by gRPC status")
    p50_ms: float | None
    p99_ms: float | None
    rows_per_s: float | None
    batches_per_s: float | None


class Queues(Answer):
    """What waits, and what runs, at this moment."""

    front_requests: int | None = Field(description="null: no front door answers")
    pending_batches: int
    in_flight_batches: int
    in_flight_rows: int


class CloseReason(Answer):
    reason: str
    total: int = Field(description="since the front doors started")
    per_s: float


class Batching(Answer):
    reasons: list[CloseReason]
    rows_per_batch: float | None


class Tenant(Answer):
    """Over the last minute."""

    tenant: str
    requests_per_s: float
    failed_per_s: float = Field(description="answered with an error, whoever was to blame")
    p50_ms: float | None
    p99_ms: float | None
    slo_ms: float | None
    in_slo: float | None = Field(
        description="share answered rightly in time; what clients did wrong does not count"
    )


class ModelRate(Answer):
    model: str
    batches_per_s: float
    rows_per_s: float


class Moved(Answer):
    """Tensors between where requests lie and an executor, both ways together."""

    host: str = Field(description="where the payloads lie: mostly the front door's host")
    numa_node: int | None = Field(description="there; null = not known")
    executor: str
    bytes_per_s: float


class Live(Answer):
    """All that moves, collected at most once a second however many ask."""

    taken_unix_ms: int
    window_s: float = Field(description="what rates are over; 0 = asked for the first time")
    topology_revision: str = Field(description="changes whenever /v1/topology does")
    state: State
    traffic: Traffic
    queues: Queues
    batching: Batching
    tenants: list[Tenant]
    models: list[ModelRate]
    answered_per_s: dict[str, float] = Field(description="batches, by id of the executor")
    moved: list[Moved] = Field(description="load of the links between requests and executors")
    silent_fronts: list[str] = Field(description="front doors that did not tell their figures")


# Traces


class TracedRequest(Answer):
    trace_id: str
    ended_unix_ms: int
    total_ms: float
    model: str
    tenant: str
    rows: int | None
    error: str


class Traces(Answer):
    """Newest first."""

    requests: list[TracedRequest]
    silent: list[str] = Field(description="services that did not answer")


class Stage(Answer):
    """`kind`: stage; linked, of another trace that this request made use of; or travel, the
    time between two services. `start_ms` counts from the start of the request."""

    service: str
    name: str
    kind: str
    depth: int
    start_ms: float
    duration_ms: float
    attributes: dict[str, str]
    error: str


class Trace(Answer):
    trace_id: str
    total_ms: float
    stage_ms: float
    travel_ms: float
    stages: list[Stage]
    silent: list[str] = Field(description="services that did not answer: their spans are missing")
