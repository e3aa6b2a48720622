"""Memory that the batches of each class of tenants may take here: staging, device, results."""

import threading
from collections.abc import Iterable

from sits_core.datatypes import NUMPY_TYPES
from sits_core.errors import ResourceExhausted, Unavailable
from sits_executor.batch import Batch
from sits_executor.contract import Contract
from sits_protos.v1.link_pb2 import LinkMessage
from sits_scheduling.memory_shares import MemoryShares, Refused
from sits_scheduling.tenants import Tenants, Tier


class TenantMemory:
    """Counts a batch from its arrival to its answer, for the tenant that has most of its rows.

    A batch takes its inputs and its outputs; outputs whose sizes are not known before the run
    count as much as the inputs. Weakness: what a model needs besides, such as activations, is
    not counted: the process's own budget bounds that.
    """

    def __init__(self, shares: MemoryShares, tenants: Tenants) -> None:
        self._shares, self._tenants = shares, tenants
        self._held: dict[Batch, tuple[Tier, int]] = {}
        self._lock = threading.Lock()

    def admit(self, batch: Batch, contract: Contract) -> None:
        """Raises `Unavailable` (TENANT_MEMORY_FULL: not now) or `ResourceExhausted` (never)."""
        tier = self._tenants.of(batch.header.tenant).tier
        size_bytes = batch_bytes(batch, contract)
        with self._lock:
            refused = self._shares.take(tier, size_bytes)
            if refused is None:
                self._held[batch] = (tier, size_bytes)
        if refused is not None:
            raise _error(refused, batch.header.tenant)
        answer = batch.answer

        def answered(message: LinkMessage) -> bool:
            self.drop([batch])
            return answer(message)

        batch.answer = answered

    def drop(self, batches: Iterable[Batch]) -> None:
        """They are answered, or nobody waits for their answer any more."""
        with self._lock:
            for batch in batches:
                tier, size_bytes = self._held.pop(batch, (Tier.BRONZE, 0))
                self._shares.give(tier, size_bytes)

    def held(self, tier: Tier) -> int:
        return self._shares.held(tier)

    def __repr__(self) -> str:
        return f"<TenantMemory {len(self._held)} batches, {self._shares!r}>"


def batch_bytes(batch: Batch, contract: Contract) -> int:
    """Of its inputs and outputs."""
    inputs = max(batch.header.payload_bytes, sum(len(t.inline) for t in batch.tensors))
    rows = batch.rows if contract.batches else 1
    sizes = [_row_bytes(output.datatype, output.dims) for output in contract.outputs]
    known = sum(size for size in sizes if size is not None)
    return inputs + rows * known + (inputs if None in sizes else 0)


def _row_bytes(datatype: str, dims: Iterable[int]) -> int | None:
    kind = NUMPY_TYPES.get(datatype)
    if kind is None or -1 in dims:
        return None
    size = kind.itemsize
    for dim in dims:
        size *= dim
    return size


def _error(refused: Refused, tenant: str) -> Unavailable | ResourceExhausted:
    who = f"tenant '{tenant}' ({refused.tier.name.lower()})"
    if refused.never:
        return ResourceExhausted(
            f"this batch of {who} needs {refused.asked_bytes} bytes, expected at most its share "
            f"of {refused.share_bytes} (SITS_EXECUTOR_TENANT_MEMORY_BYTES)",
            reason="TENANT_MEMORY_SHARE",
        )
    return Unavailable(
        f"{who} holds {refused.held_bytes} of its {refused.share_bytes} bytes here",
        reason="TENANT_MEMORY_FULL",
    )
