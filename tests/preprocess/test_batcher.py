"""The queues of one model at the front door."""

from sits_preprocess.batcher import ModelBatcher
from sits_preprocess.request import Request
from sits_scheduling.batching import BatchPolicy, Capacity
from sits_scheduling.tenant_file import standard_tenants

ROOM = Capacity(room=1, idle=1)


def request(tenant: str, key: int, at_ns: int) -> Request:
    made = Request(lambda _: None, at_ns, tenant=tenant, model="m", rows=1, key=key)
    made.queued_ns = at_ns
    return made


def test_a_parameter_that_is_never_the_same_does_not_push_others_back() -> None:
    """Requests that may not share a run wait in queues of their own: 400 of them are no reason
    for Gold to wait for 400 runs, nor to expect that."""
    batcher = ModelBatcher(BatchPolicy(max_rows=8), 1000, standard_tenants())
    for number in range(400):
        batcher.add(request("bronze", number, number))
    assert batcher.cost_ahead("gold", 1.0) < 1
    wanted = request("gold", -1, 400)
    batcher.add(wanted)
    first = [batcher.next_batch(500, ROOM) for _ in range(2)]
    assert any(batch is not None and wanted in batch.items for batch in first)
    assert len(batcher) == 399
