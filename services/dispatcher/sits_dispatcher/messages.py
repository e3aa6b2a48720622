"""Decisions of `sits_scheduling` as messages of Control."""

from sits_protos.v1 import control_pb2 as pb
from sits_protos.v1.link_pb2 import CloseReason
from sits_scheduling.explain import Explanation
from sits_scheduling.shadow import ShadowReport


def shadow_report(report: ShadowReport | None) -> pb.ShadowReport | None:
    if report is None:
        return None
    return pb.ShadowReport(
        strategy=report.strategy,
        decisions=report.decisions,
        agreed=report.agreed,
        gain_us=report.gain_us,
    )


def explanation(found: Explanation) -> pb.Explanation:
    closed_by = found.closed_by.value if found.closed_by else 0
    return pb.Explanation(
        request_ids=found.request_ids,
        decided_unix_ns=found.decided_ns,
        model=found.model,
        strategy=found.strategy,
        closed_by=CloseReason.ValueType(closed_by),
        considered=found.considered,
        eligible=found.eligible,
        pipeline=found.path.pipeline,
        step=found.path.step,
        options=[
            pb.Option(executor=option.executor, scores=option.scores, room=option.room)
            for option in found.options
        ],
    )
