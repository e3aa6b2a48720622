"""Isolation of tenants as the settings ask for it, or a start that fails with what is missing."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from sits_core.settings import SettingsError, parsed_file
from sits_executor.batch import Batch
from sits_executor.instances import Lane
from sits_executor.settings import ExecutorSettings
from sits_executor.tenancy.cpu import CpuShares, CpuSharesMissing, open_cpu_shares
from sits_executor.tenancy.memory import TenantMemory
from sits_scheduling.memory_shares import MemoryShares, SharesError, parse_shares
from sits_scheduling.tenant_file import parse_tenants, standard_tenants
from sits_scheduling.tenants import Tenants, Tier


class Tenancy:
    """`memory` None = not divided; no `lanes` = any instance runs anybody's batches."""

    def __init__(
        self, memory: TenantMemory | None, cpu: CpuShares | None, tenants: Tenants
    ) -> None:
        self.memory, self._cpu = memory, cpu
        self.lanes: Sequence[Lane] = () if cpu is None else _lanes(cpu, tenants)

    def close(self) -> None:
        if self._cpu is not None:
            self._cpu.close()


def open_tenancy(settings: ExecutorSettings, root: Path = Path("/")) -> Tenancy:
    """Raises `SettingsError`."""
    tenants = parsed_file(settings, "tenants_file", parse_tenants) or standard_tenants()
    try:
        shares = parse_shares(settings.executor_tenant_shares)
    except SharesError as error:
        raise SettingsError(f"SITS_EXECUTOR_TENANT_SHARES: {error}") from None
    budget = settings.executor_tenant_memory_bytes
    memory = TenantMemory(MemoryShares(budget, shares), tenants) if budget else None
    cpu = _cpu(shares, root) if settings.executor_cpu_shares else None
    return Tenancy(memory, cpu, tenants)


def _cpu(shares: Mapping[Tier, float], root: Path) -> CpuShares:
    try:
        return open_cpu_shares(shares, root)
    except CpuSharesMissing as error:
        raise SettingsError(f"SITS_EXECUTOR_CPU_SHARES: {error}") from None


def _lanes(cpu: CpuShares, tenants: Tenants) -> tuple[Lane, ...]:
    def wanted(tier: Tier, batch: Batch) -> bool:
        return tenants.of(batch.header.tenant).tier is tier

    return tuple(
        Lane(tier.name.lower(), partial(cpu.enter, tier), partial(wanted, tier)) for tier in Tier
    )
