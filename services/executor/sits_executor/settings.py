"""Settings of the executor, read from `SITS_*` and `SITS_EXECUTOR_*` variables."""

from typing import Literal

from pydantic import Field

from sits_core.settings import Address, Settings


class ExecutorSettings(Settings):
    """What one executor process serves, where, and on which device."""

    executor_bind: Address = Field(
        default="127.0.0.1:8020", description="host:port of Execute, Control and health"
    )
    executor_metrics_bind: Address = Field(
        default="127.0.0.1:8021", description="host:port of Prometheus /metrics"
    )
    executor_advertise: str = Field(
        default="", description="host:port that others reach it at; empty = the bind"
    )
    executor_model_repository: str = Field(
        default="models", description="folder of models in Triton's layout"
    )
    executor_load: Literal["all", "none"] = Field(
        default="all", description="models loaded at start; Control loads and unloads later"
    )
    executor_load_threads: int = Field(
        default=2, ge=1, le=64, description="models that load at the same time"
    )
    executor_device: str = Field(
        default="",
        pattern=r"^(|cpu:\d+|(GPU|MIG)-[\w/-]+)$",
        description="device that runs batches, as topology names it; empty = the one GPU that "
        "NVIDIA_VISIBLE_DEVICES gives to this container, else cpu:<NUMA node>",
    )
    executor_threads: int = Field(
        default=0, ge=0, le=1024, description="CPU threads to divide; 0 = from the CPU quota"
    )
    executor_queue_batches: int = Field(
        default=64, ge=1, le=4096, description="batches that may wait for one model version"
    )
    executor_default_max_batch: int = Field(
        default=32, ge=1, description="max_batch_size of a model that batches and does not say"
    )
    executor_upload_bytes: int = Field(
        default=512 << 20, ge=0, description="largest sum of files sent with one load call"
    )
    executor_pool_bytes: int = Field(
        default=64 << 20, ge=0, description="shared memory for outputs; 0 = always inline"
    )
    executor_pool_threshold_bytes: int = Field(
        default=32 << 10, ge=0, description="outputs from this size on go into shared memory"
    )
    executor_streams: int = Field(
        default=32, ge=1, le=256, description="batches that run at once on a GPU, of all models"
    )
    executor_gpu_memory_bytes: int = Field(
        default=0, ge=0, description="most GPU memory of this process; 0 = all of the GPU"
    )
    executor_staging_bytes: int = Field(
        default=1 << 30, ge=0, description="pinned host memory of all models; 0 = no limit"
    )
    executor_buffer_samples: int = Field(
        default=128,
        ge=8,
        le=1 << 20,
        description="samples of one model that may wait, at single precision; half as many "
        "staged, a quarter on the GPU",
    )
    executor_tenant_shares: str = Field(
        default="gold=50,silver=30,bronze=20",
        description="percent of SITS_EXECUTOR_TENANT_MEMORY_BYTES, and of the CPUs, for each "
        "class of tenants",
    )
    executor_tenant_memory_bytes: int = Field(
        default=0,
        ge=0,
        description="memory that batches of all tenants may take at once, divided by their "
        "shares; 0 = not divided",
    )
    executor_cpu_shares: bool = Field(
        default=False,
        description="divide the CPUs among classes of tenants by cgroup v2, which must be writable",
    )
    executor_hang_s: float = Field(
        default=60.0, gt=0, le=3600, description="a run on a GPU that takes longer hangs"
    )
    executor_triton_url: str = Field(
        default="",
        pattern=r"^(|[^/\s]+:\d+)$",
        description="host:port of gRPC of a Triton server whose models this executor serves, "
        "instead of a repository of its own; empty = none",
    )
    executor_triton_period_s: float = Field(
        default=1.0, gt=0, le=60, description="seconds between looks at the Triton server's models"
    )
    executor_triton_timeout_s: float = Field(
        default=60.0, gt=0, description="longest that the Triton server may take for a batch"
    )
    executor_triton_shm: bool = Field(
        default=True,
        description="large inputs go through system shared memory to a Triton server on loopback",
    )
    executor_gang_dispatcher: str = Field(
        default="",
        description="host:port of a dispatcher that chooses the GPUs of a model with `gang_size`",
    )
    executor_gang_devices: str = Field(
        default="",
        description="GPUs for such models by name, comma separated, instead of asking a dispatcher",
    )
