"""Tenants' classes get their part of memory and processors, or the start says what is missing."""

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sits_core.errors import ResourceExhausted, Unavailable
from sits_core.settings import SettingsError
from sits_core.testing import wait_until
from sits_executor import batch as batches
from sits_executor.batch import Batch
from sits_executor.contract import Contract, TensorContract
from sits_executor.instances import Instances, Lane
from sits_executor.queue import BatchQueue
from sits_executor.settings import ExecutorSettings
from sits_executor.tenancy.cpu import CpuSharesMissing, open_cpu_shares
from sits_executor.tenancy.memory import TenantMemory, batch_bytes
from sits_executor.tenancy.opening import open_tenancy
from sits_executor.testing import TIMEOUT_S, FakeDispatcher, batch, builtin_config, write_model
from sits_protos.v1.link_pb2 import LinkMessage
from sits_scheduling.memory_shares import STANDARD, MemoryShares, SharesError, parse_shares
from sits_scheduling.tenant_file import standard_tenants
from sits_scheduling.tenants import Tier

CONTRACT = Contract(
    "m", "1", 64,
    {"x": TensorContract("x", "FP32", (2,), None)},
    (TensorContract("y", "FP32", (3,), None),),
)  # fmt: skip


def shares() -> dict[Tier, float]:
    return parse_shares(STANDARD)


def arrived(tenant: str, rows: int = 1) -> Batch:
    """`rows` of 8 bytes in and 12 bytes out."""
    message = batch(1, "m", [np.zeros((rows, 2), np.float32)])
    message.batch.tenant = tenant
    return batches.from_message(message, 1, lambda _: True, "link")


def memory(budget: int = 1000) -> TenantMemory:
    return TenantMemory(MemoryShares(budget, shares()), standard_tenants())


# shares


def test_the_standard_is_50_30_and_20_percent() -> None:
    assert shares() == {Tier.GOLD: 0.5, Tier.SILVER: 0.3, Tier.BRONZE: 0.2}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("gold=50", "silver has none"),
        ("gold=50,silver=30,bronze=0", "bronze has none"),
        ("gold=50,silver=30,bronze=30", "at most 100 percent"),
        ("gold=50,silver=30,bronze=10,gold=1", "once each"),
        ("platinum=50", "once each"),
        ("", "once each"),
    ],
)
def test_shares_that_cannot_be_say_what_was_expected(text: str, problem: str) -> None:
    with pytest.raises(SharesError, match=problem):
        parse_shares(text)
    with pytest.raises(SettingsError, match="SITS_EXECUTOR_TENANT_SHARES: expected"):
        open_tenancy(ExecutorSettings(executor_tenant_shares=text))


# memory


def test_a_batch_counts_its_inputs_and_outputs() -> None:
    assert batch_bytes(arrived("gold", 5), CONTRACT) == 5 * (8 + 12)


def test_outputs_of_unknown_size_count_as_much_as_the_inputs() -> None:
    free = Contract("m", "1", 64, CONTRACT.inputs, (TensorContract("y", "FP32", (-1,), None),))
    assert batch_bytes(arrived("gold", 5), free) == 5 * (8 + 8)


def test_a_class_is_held_to_its_share_and_others_keep_theirs() -> None:
    own = memory()
    own.admit(arrived("bronze", 10), CONTRACT)
    with pytest.raises(Unavailable, match=r"'bronze' \(bronze\) holds 200 of its 200") as refused:
        own.admit(arrived("bronze"), CONTRACT)
    assert refused.value.reason == "TENANT_MEMORY_FULL"
    own.admit(arrived("gold", 25), CONTRACT)
    assert (own.held(Tier.BRONZE), own.held(Tier.GOLD)) == (200, 500)


def test_a_batch_larger_than_the_share_is_refused_for_good_and_says_so() -> None:
    with pytest.raises(ResourceExhausted, match="needs 220 bytes, expected at most its share of 2"):
        memory().admit(arrived("bronze", 11), CONTRACT)


def test_an_answer_gives_the_memory_back_once() -> None:
    own, one = memory(), arrived("silver", 10)
    own.admit(one, CONTRACT)
    assert one.answer(LinkMessage())
    own.drop([one])
    assert own.held(Tier.SILVER) == 0


def test_unknown_tenants_share_the_part_of_bronze() -> None:
    own = memory()
    own.admit(arrived("somebody", 10), CONTRACT)
    with pytest.raises(Unavailable):
        own.admit(arrived("bronze"), CONTRACT)


def test_a_full_share_is_back_pressure_on_the_link_and_ends_with_the_batch(
    repository: Path, linked: Any, gate: Any
) -> None:
    """20 % of 500 bytes: one batch of 4 rows with 8 bytes in and out, not two."""
    write_model(repository, "m", gate.config)
    dispatcher: FakeDispatcher
    with linked(executor_tenant_memory_bytes=500) as (_, dispatcher):
        dispatcher.wait_ready("m")
        gate.close()
        first, second, third = (batch(n, "m", [np.zeros((4, 2), np.float32)]) for n in (1, 2, 3))
        for message in (first, second, third):
            message.batch.tenant = "bronze"
        dispatcher.send(first)
        gate.wait_for_run()
        assert dispatcher.run(second).result.error.reason == "TENANT_MEMORY_FULL"
        gate.open()
        assert not dispatcher.result(1).result.HasField("error")
        assert not dispatcher.run(third).result.HasField("error")


# processors


@pytest.fixture(name="root")
def fake_root(tmp_path: Path) -> Path:
    """A cgroup v2 of ours, as files."""
    own = tmp_path / "sys/fs/cgroup/box"
    own.mkdir(parents=True)
    (own / "cgroup.controllers").write_text("cpuset cpu memory\n")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/box\n")
    return tmp_path


def test_each_class_has_a_threaded_cgroup_with_its_weight(root: Path) -> None:
    open_cpu_shares(shares(), root)
    own = root / "sys/fs/cgroup/box"
    assert (own / "cgroup.subtree_control").read_text() == "+cpu"
    made = {name: own / f"sits-{os.getpid()}-{name}" for name in ("gold", "silver", "bronze")}
    assert {f.joinpath("cgroup.type").read_text() for f in made.values()} == {"threaded"}
    weights = {name: folder.joinpath("cpu.weight").read_text() for name, folder in made.items()}
    assert weights == {"gold": "500", "silver": "300", "bronze": "200"}


def test_a_thread_enters_the_cgroup_of_its_class(root: Path) -> None:
    cpu = open_cpu_shares(shares(), root)
    cpu.enter(Tier.SILVER)
    file = root / f"sys/fs/cgroup/box/sits-{os.getpid()}-silver/cgroup.threads"
    assert file.read_text() == str(threading.get_native_id())


@pytest.mark.parametrize(
    ("controllers", "problem"),
    [(None, "is no cgroup v2"), ("cpuset memory", "has no cpu controller, it has: cpuset memory")],
)
def test_what_is_missing_of_cgroups_is_named(
    root: Path, controllers: str | None, problem: str
) -> None:
    file = root / "sys/fs/cgroup/box/cgroup.controllers"
    file.unlink()
    if controllers is not None:
        file.write_text(controllers)
    with pytest.raises(CpuSharesMissing, match=problem):
        open_cpu_shares(shares(), root)
    with pytest.raises(SettingsError, match=f"SITS_EXECUTOR_CPU_SHARES: .*{problem}"):
        open_tenancy(ExecutorSettings(executor_cpu_shares=True), root)


def test_what_cannot_be_written_is_named(root: Path) -> None:
    (root / "sys/fs/cgroup/box/cgroup.subtree_control").mkdir()
    with pytest.raises(CpuSharesMissing, match=r"cannot write '\+cpu' to .*subtree_control"):
        open_cpu_shares(shares(), root)


def test_without_the_settings_nothing_is_divided() -> None:
    own = open_tenancy(ExecutorSettings())
    assert (own.memory, own.lanes) == (None, ())


def test_this_machine_gives_cpu_shares_or_says_what_is_missing() -> None:
    try:
        cpu = open_cpu_shares(shares())
    except CpuSharesMissing as error:
        assert "cgroup" in str(error)  # noqa: PT017 - either outcome is right
        return
    entered = threading.Thread(target=cpu.enter, args=(Tier.GOLD,))
    entered.start()
    entered.join()
    cpu.close()


def test_each_class_has_its_own_instances_which_run_its_batches_only() -> None:
    """Also when one class has nothing but a run that does not end."""
    queue, ran, stuck = BatchQueue(8), list[tuple[str, str]](), threading.Event()
    tiers = {"gold": "g", "silver": "s"}

    def run(one: Batch) -> bool:
        lane = threading.current_thread().name.split()[1]
        if one.header.tenant == "gold":
            stuck.wait(TIMEOUT_S)
        ran.append((lane, one.header.tenant))
        return True

    lanes = [
        Lane(name, lambda: None, lambda b, name=name: b.header.tenant == name) for name in tiers
    ]
    ended = threading.Event()
    Instances("m/1", 1, queue, run, ended.set, lanes).start()
    for tenant in ("gold", "gold", "silver", "silver"):
        assert queue.write(arrived(tenant)).accepted
    wait_until(lambda: len(ran) == 2, TIMEOUT_S, "what silver waits for")
    assert ran == [("silver", "silver")] * 2
    stuck.set()
    queue.close()
    assert ended.wait(TIMEOUT_S)
    assert ran[2:] == [("gold", "gold")] * 2


def test_an_executor_with_cpu_shares_runs_everybodys_batches(
    repository: Path, linked: Any, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "sits_executor.executor.open_tenancy", lambda settings: open_tenancy(settings, root)
    )
    write_model(repository, "m", builtin_config("identity"))
    dispatcher: FakeDispatcher
    with linked(executor_cpu_shares=True) as (_, dispatcher):
        dispatcher.wait_ready("m")
        for number, tenant in enumerate(("gold", "silver", "bronze", "", "nobody"), 1):
            message = batch(number, "m", [np.zeros((1, 2), np.float32)])
            message.batch.tenant = tenant
            assert not dispatcher.run(message).result.HasField("error")
