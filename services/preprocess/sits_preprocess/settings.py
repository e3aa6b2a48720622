"""Settings of the front door."""

from typing import Literal

from pydantic import Field

from sits_core.settings import Address, Addresses, CpusOrAuto, Settings


class PreprocessSettings(Settings):
    """What `preprocess` reads from `SITS_*` variables."""

    preprocess_bind: Address = Field(
        default="127.0.0.1:8001",
        description="host:port of the Open Inference Protocol and of sits.v1.Inference",
    )
    preprocess_metrics_bind: Address = Field(
        default="127.0.0.1:8002", description="host:port of Prometheus /metrics"
    )
    preprocess_control_bind: Address = Field(
        default="127.0.0.1:8003", description="host:port of sits.v1.Control"
    )
    preprocess_dispatchers: Addresses = Field(
        default="127.0.0.1:8010",
        description="dispatchers to link to, host:port, comma separated; a name stands for all "
        "its addresses, and is looked up again and again",
    )
    preprocess_transport: Literal["auto", "grpcio", "native"] = Field(
        default="auto",
        description="HTTP/2 engine of the front port: the fast one in Rust (`native`), or the "
        "reference (`grpcio`); `auto` is native wherever it can do what is asked for: no TLS, no "
        "maximum connection age",
    )
    preprocess_io_threads: int = Field(
        default=0,
        ge=0,
        le=64,
        description="threads of the native transport that do HTTP/2; 0 = one for every eight "
        "processors",
    )
    preprocess_io_nice: int = Field(
        default=0,
        ge=-20,
        le=0,
        description="niceness of those threads: below 0 they go before all others that want a "
        "processor, so that under overload calls do not wait for them unseen; needs CAP_SYS_NICE",
    )
    preprocess_python_cpus: CpusOrAuto = Field(
        default="",
        description="processors for the threads that run Python, best a single one that nobody "
        "else keeps busy; HTTP/2 of the native transport keeps off them; `auto` = one of its own "
        "while it is busy and refuses nothing, for machines that serve nothing else; unset = all",
    )
    preprocess_processes: int = Field(
        default=1,
        ge=1,
        le=64,
        description="processes that serve the front port together; the n-th further one has its "
        "metrics and control 100 n ports above those of the first",
    )
    preprocess_reuse_port: bool = Field(
        default=False,
        description="let other processes serve the same front port (SO_REUSEPORT), started by "
        "whatever keeps them running",
    )
    preprocess_tls: Literal["auto", "off"] = Field(
        default="auto",
        description="TLS on the front port when there is a certificate for it, or never, for a "
        "proxy in front that ends TLS",
    )
    preprocess_tls_cert_file: str | None = Field(
        default=None, description="PEM certificate chain of the front port; default: the mesh's"
    )
    preprocess_tls_key_file: str | None = Field(
        default=None, description="PEM key of that certificate"
    )
    preprocess_tls_ca_file: str | None = Field(
        default=None, description="PEM CA of the clients' certificates; default: the mesh's"
    )
    preprocess_tls_require_client_cert: bool | None = Field(
        default=None,
        description="refuse clients without a certificate; default: yes when the CA above is set, "
        "else as SITS_TLS_REQUIRE_CLIENT_CERT says for the mesh",
    )
    preprocess_drain_delay_s: float = Field(
        default=1.0,
        ge=0,
        description="seconds after SIGTERM in which it says that it is not ready and still takes "
        "requests, so that clients and load balancers find another front door",
    )
    preprocess_max_connection_age_s: float = Field(
        default=0.0,
        ge=0,
        description="seconds after which clients are asked to connect again, so that they find "
        "new front doors; calls under way finish; 0 = never; the grpcio transport only",
    )
    preprocess_api_keys_file: str | None = Field(
        default=None,
        description="JSON object of API key to tenant; when set, inference needs one of the keys",
    )
    preprocess_default_tenant: str = Field(
        default="bronze",
        pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$",
        description="tenant of requests that name none",
    )
    preprocess_default_timeout_s: float = Field(
        default=0.0,
        ge=0,
        description="time limit of requests that bring none, seconds; 0 = no limit",
    )
    preprocess_allow_client_shm: bool = Field(
        default=False,
        description="let clients of this host register their own shared memory",
    )
    preprocess_connection_calls: int = Field(
        default=1024,
        ge=1,
        le=100_000,
        description="calls that a connection may have open, streams included; its client keeps the "
        "others to itself, and their time runs there. By default as many as fill 8 GPUs with two "
        "batches of 64 each",
    )
    preprocess_stream_requests: int = Field(
        default=256,
        ge=1,
        le=100_000,
        description="unanswered requests a stream may have before it is not read any further",
    )
    preprocess_stream_bytes: int = Field(
        default=64 << 20,
        ge=1 << 20,
        description="bytes of unanswered requests a stream may have before it is not read further",
    )
    preprocess_open_bytes: int = Field(
        default=1 << 30,
        ge=1 << 20,
        description="bytes of all unanswered requests; beyond them new ones are refused",
    )
    preprocess_batch_window_us: int = Field(
        default=0,
        ge=0,
        le=10_000_000,
        description="how long the first request of a batch waits for company even when an "
        "instance is free, µs; a model's max_queue_delay_microseconds wins",
    )
    preprocess_batch_close_requests: int = Field(
        default=8, ge=0, description="requests that end that wait early; 0 = never"
    )
    preprocess_batch_close_bytes: int = Field(
        default=4096, ge=0, description="payload bytes that end that wait early; 0 = never"
    )
    preprocess_max_batch_bytes: int = Field(
        default=64 << 20, ge=1, description="payload bytes in one batch of several requests"
    )
    preprocess_max_queue: int = Field(
        default=4096,
        ge=1,
        description="requests of one model that may wait; a model's max_queue_size wins",
    )
    preprocess_producer_rate: Literal["off", "fixed_slices", "adaptive_quota"] = Field(
        default="off",
        description="how fast each tenant may fill a model's queue that is more than three eighths "
        "full: in turns of 1 ms, or by a quota that follows the queue's watermarks",
    )
    preprocess_admission: bool = Field(
        default=True,
        description="refuse at once what cannot meet its deadline, is over its tenant's quota, or "
        "belongs to a tier that governance sheds",
    )
    preprocess_fallback: str = Field(
        default="",
        pattern=r"^([^=,]+=[1-9]\d*(,[^=,]+=[1-9]\d*)*)?$",
        description="cheaper versions that requests without a version get while governance "
        "degrades: MODEL=VERSION, comma list",
    )
    preprocess_response_cache_bytes: int = Field(
        default=0,
        ge=0,
        description="memory for answers that are given again, of models whose config.pbtxt has "
        "response_cache { enable: true }; 0 = off",
    )
    preprocess_response_cache_ttl_s: float = Field(
        default=60.0,
        gt=0,
        le=30 * 86_400,
        description="seconds for which an answer is given again; a model's parameter "
        "response_cache_ttl_s wins",
    )
    preprocess_response_cache_redis_bytes: int = Field(
        default=32 << 20,
        ge=0,
        description="answers that this process keeps in Redis for all front doors; 0 = none. "
        "Nothing is kept there without SITS_REDIS_URL",
    )
    preprocess_response_cache_redis_wait_ms: float = Field(
        default=5.0,
        gt=0,
        le=1000,
        description="no request waits longer than this for what Redis may have, milliseconds",
    )
    preprocess_wait_s: float = Field(
        default=5.0,
        ge=0,
        description="seconds that requests wait for a dispatcher or executor that went away",
    )
    preprocess_pool_bytes: int = Field(
        default=256 << 20,
        ge=0,
        description="shared memory for inputs, at most half of what is free; 0 = always inline",
    )
    preprocess_pool_threshold_bytes: int = Field(
        default=32 << 10, ge=1, description="smaller inputs of a batch go inline"
    )


def fallback_of(text: str) -> dict[str, str]:
    """Model to version."""
    pairs = (pair.partition("=") for pair in text.split(",") if pair)
    return {model.strip(): version for model, _, version in pairs}
