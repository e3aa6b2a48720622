"""Which versions of a model are served. Pure."""

from collections.abc import Sequence

from sits_executor.backends.base import LoadError
from sits_protos.oip.model_config_pb2 import ModelVersionPolicy


def choose(policy: ModelVersionPolicy, present: Sequence[int]) -> tuple[int, ...]:
    """`present` in rising order. No policy = the latest one. Raises `LoadError` for none."""
    if not present:
        raise LoadError("the model's folder has no version: expected a folder named 1, 2, …")
    match policy.WhichOneof("policy_choice"):
        case "all":
            return tuple(present)
        case "specific":
            return _specific(policy.specific.versions, present)
        case _:
            return tuple(present[-max(1, policy.latest.num_versions) :])


def _specific(wanted: Sequence[int], present: Sequence[int]) -> tuple[int, ...]:
    missing = sorted(set(wanted) - set(present))
    if missing or not wanted:
        raise LoadError(
            f"version_policy asks for versions {sorted(wanted)}, there are {list(present)}"
        )
    return tuple(sorted(set(wanted)))
