"""What a mesh on this machine consists of: which programs, with which settings."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sits_cli.ports import AddressBook
from sits_cli.supervisor import Program
from sits_core.settings import AUTO_CPUS

OWN_PREFIX = "SITS_CLI_"
"""Variables of this command, which the services do not know."""

Env = Mapping[str, str]
_ALONE: Env = {
    "SITS_PREPROCESS_DRAIN_DELAY_S": "0",
    "SITS_PREPROCESS_PYTHON_CPUS": AUTO_CPUS,
    "SITS_DISPATCHER_PYTHON_CPUS": AUTO_CPUS,
}
"""With one front door there is nobody to send clients to; and the machine is for this mesh."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run. `env` holds variables for all services, `service_env` those of one
    (by name, such as "executor-0"; "executor" is all executors). `more` are further instances:
    a name, such as "dispatcher-1", and what is its own, its binds at least."""

    addresses: AddressBook
    models: Path = Path("models")
    log_dir: Path = Path(".sits/logs")
    redis_url: str | None = None
    private_redis: bool = True
    restart: bool = True
    env: Env = field(default_factory=dict)
    service_env: Mapping[str, Env] = field(default_factory=dict)
    more: Mapping[str, Env] = field(default_factory=dict)

    @property
    def loads_models(self) -> bool:
        """Whether executors load anything at start; without, the front door is never ready."""
        everywhere = {**os.environ, **self.env, **self.service_env.get("executor", {})}
        return everywhere.get("SITS_EXECUTOR_LOAD") != "none"

    def programs(self, redis_url: str | None) -> list[Program]:
        """In the order they start; they stop in the reverse, the front door first."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(OWN_PREFIX)}
        inherited.pop("SITS_REDIS_URL", None)
        # Without Redis there are no leases to find the executors by.
        found = {"SITS_REDIS_URL": redis_url} if redis_url else self._static_executors()
        common = {**_ALONE, **inherited, **found, **self.env}
        return [self._program(name, {**common, **own}) for name, own in self._own_env().items()]

    def _own_env(self) -> dict[str, Env]:
        """Where each service listens, and what it has to find."""
        book = self.addresses
        topology = {
            "SITS_TOPOLOGY_BIND": book.topology,
            "SITS_TOPOLOGY_METRICS_BIND": book.topology_metrics,
        }
        executors = {
            f"executor-{number}": {
                "SITS_EXECUTOR_BIND": bind,
                "SITS_EXECUTOR_METRICS_BIND": metrics,
                "SITS_EXECUTOR_MODEL_REPOSITORY": str(self.models),
            }
            for number, (bind, metrics) in enumerate(book.executors)
        }
        dispatcher = {
            "SITS_DISPATCHER_BIND": book.dispatcher,
            "SITS_DISPATCHER_ADMIN_BIND": book.admin,
        }
        preprocess = {
            "SITS_PREPROCESS_BIND": book.front,
            "SITS_PREPROCESS_METRICS_BIND": book.front_metrics,
            "SITS_PREPROCESS_CONTROL_BIND": book.front_control,
            "SITS_PREPROCESS_DISPATCHERS": book.dispatcher,
        }
        return {
            "topology": topology,
            **executors,
            "dispatcher": dispatcher,
            "preprocess": preprocess,
            **self.more,
        }

    def _static_executors(self) -> dict[str, str]:
        addresses = [bind for bind, _ in self.addresses.executors]
        return {"SITS_DISPATCHER_EXECUTORS": ",".join(addresses)}

    def _program(self, name: str, env: Env) -> Program:
        kind = name.partition("-")[0]
        whole = {**env, **self.service_env.get(kind, {}), **self.service_env.get(name, {})}
        argv = (sys.executable, "-m", f"sits_{kind}")
        return Program(name, argv, whole, self.log_dir / f"{name}.log")


def bind_variable(name: str) -> str:
    """The setting that says where a service of this name serves."""
    return f"SITS_{name.partition('-')[0].upper()}_BIND"
