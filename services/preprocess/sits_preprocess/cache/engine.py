"""An engine that gives answers again, before the one that computes them is asked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from sits_core.clock import now_ns
from sits_core.errors import Cancelled, SitsError
from sits_preprocess.cache.flights import Flights
from sits_preprocess.cache.memory import Kept, Memory, kept
from sits_preprocess.cache.metrics import CacheMetrics
from sits_preprocess.cache.records import kept_of
from sits_preprocess.cache.rules import Digests, Rule, Rules
from sits_preprocess.cache.shared import Asked, Shared
from sits_preprocess.catalog import Catalog
from sits_preprocess.gates import Look
from sits_preprocess.inference import Engine
from sits_preprocess.request import Answer, Answered, Request, Run
from sits_preprocess.statistics import Statistics
from sits_protos.v1.registry_pb2 import CachedAnswer

Sink = Callable[[Sequence[Answered]], None]

MEMORY: Final = "memory"
REDIS: Final = "redis"
STALE: Final = "stale"
JOINED: Final = "joined"
MISS: Final = "miss"

STALE_MS: Final = "sits_stale_ms"
"""The parameter of an answer that is over, and since when."""

_CANCELLED: Final = Cancelled("cancelled by the client")


_RUNS: Final = {where: Run(cached=where) for where in (MEMORY, REDIS, STALE, JOINED)}


@dataclass(slots=True)
class _Missed:
    """A request that has to be computed, or is looked for in Redis. When the search began, and how
    long it took."""

    digest: bytes
    rule: Rule
    asked_ns: int
    took_ns: int = 0


class CachedEngine:
    """Between a front door's requests and its engine. Safe from any thread; never blocks.

    While governance degrades, models that allow it give answers that are over, before any request
    is refused.

    Hits are answered on the caller's thread, without queue, quota or gate: they cost nothing
    that those protect. What was not found goes on, and its answer is kept when it comes.
    """

    def __init__(
        self, engine: Engine, rules: Rules, memory: Memory, shared: Shared | None,
        statistics: Statistics, metrics: CacheMetrics, clock: Callable[[], int] = now_ns,
    ) -> None:  # fmt: skip
        self._engine, self._rules, self._memory, self._shared = engine, rules, memory, shared
        self._statistics, self._metrics, self._clock = statistics, metrics, clock
        self._missed: dict[Request, _Missed] = {}
        self._digests, self._flights = Digests(), Flights()
        self._sink: Sink = lambda _answered: None
        if shared is not None:
            shared.found = self._found

    def start(self) -> None:
        if self._shared is not None:
            self._shared.start()

    def stop(self) -> None:
        if self._shared is not None:
            self._shared.stop()

    def pause(self, model: str) -> None:
        """`model` was loaded: for a moment none of its answers is given again."""
        self._rules.pause(model)

    # as an engine

    @property
    def catalog(self) -> Catalog:
        return self._engine.catalog

    @property
    def degraded(self) -> bool:
        return self._engine.degraded

    def deliver_to(self, sink: Sink) -> None:
        self._sink = sink
        self._engine.deliver_to(self._answered)

    def refusing(self, now: int) -> bool:
        return self._engine.refusing(now)

    def foresee(self, request: Request, now: int) -> SitsError | None:
        """A model whose answers are kept may have this one: it has to be read to be found."""
        if self._rules.keeps(request.model, request.version):
            return None
        return self._engine.foresee(request, now)

    def look(self, request: Request, now: int) -> Look:
        if self._rules.keeps(request.model, request.version):
            return Look(None)
        return self._engine.look(request, now)

    def turned_away(self, error: SitsError, requests: int, now: int) -> None:
        self._engine.turned_away(error, requests, now)

    def submit(self, requests: Sequence[Request]) -> None:
        rules = [self._rules.of(request) for request in requests]
        if any(rules):
            self._search(requests, rules)
        else:
            self._engine.submit(requests)

    def _search(self, requests: Sequence[Request], rules: Sequence[Rule | None]) -> None:
        hits: list[Answered] = []
        onward: list[Request] = []
        asked: list[Asked] = []
        for request, rule in zip(requests, rules, strict=True):
            if rule is None:
                onward.append(request)
            elif (answer := self._look_up(request, rule)) is not None:
                hits.append((request, answer))
            else:
                asked.append(Asked(request, self._missed[request].digest))
        if hits:
            self._sink(hits)
        if asked and not (self._shared is not None and self._shared.ask(asked)):
            onward = list(requests) if not hits else [*onward, *(one.request for one in asked)]
        self._onward(onward)

    def cancel(self, request: Request) -> None:
        asking = self._shared is not None and self._shared.withdraw(request)
        if asking or self._flights.leave(request):
            self._missed.pop(request, None)
            self._sink([(request, Answer(error=_CANCELLED))])
        else:
            self._engine.cancel(request)

    # steps

    def _look_up(self, request: Request, rule: Rule) -> Answer | None:
        """None, and it is remembered as missed, when it is not in this process."""
        asked_ns = self._clock()
        digest = self._digests.of(request, rule)
        found = self._memory.get(digest)
        if found is not None and (where := self._usable(found, MEMORY, asked_ns)):
            return self._hit(request, found, where, asked_ns)
        self._missed[request] = _Missed(digest, rule, asked_ns)
        return None

    def _usable(self, found: Kept, where: str, now: int) -> str:
        """As what it may be given; empty = not."""
        if now < found.fresh_until_ns:
            return where
        return STALE if now < found.until_ns and self._engine.degraded else ""

    def _hit(self, request: Request, found: Kept, where: str, asked_ns: int) -> Answer:
        now = self._clock()
        self._statistics.found(request.model, request.version, now - asked_ns)
        self._metrics.looked_up(request.model, where)
        said = found.parameters
        if where == STALE:
            said = {**said, STALE_MS: max(0, now - found.fresh_until_ns) // 1_000_000}
        run = _RUNS[where]
        if request.explain:
            age_ms = (now - found.made_ns) // 1_000_000
            run = Run(explanation=f"cache={where};age_ms={age_ms}", cached=where)
        return Answer(found.outputs, None, run, said)

    def _found(self, looked_up: Sequence[tuple[Request, CachedAnswer | None]]) -> None:
        """What Redis says, on the second level's thread."""
        hits: list[Answered] = []
        onward: list[Request] = []
        for request, record in looked_up:
            answer = self._from_record(request, record) if record is not None else None
            if answer is None:
                onward.append(request)
            else:
                del self._missed[request]
                hits.append((request, answer))
        if hits:
            self._sink(hits)
        self._onward(onward)

    def _onward(self, requests: Sequence[Request]) -> None:
        """To be computed, but those whose like is computed already."""
        going = [request for request in requests if self._goes(request)]
        if going:
            self._engine.submit(going)

    def _goes(self, request: Request) -> bool:
        missed = self._missed.get(request)
        if missed is None:
            return True
        goes = self._flights.leads(request, missed.digest)
        self._metrics.looked_up(request.model, MISS if goes else JOINED)
        missed.took_ns = self._clock() - missed.asked_ns
        return goes

    def _from_record(self, request: Request, record: CachedAnswer) -> Answer | None:
        missed = self._missed[request]
        now = self._clock()
        found = kept_of(record, missed.rule, now)
        where = self._usable(found, REDIS, now)
        if not where:
            return None
        self._memory.put(missed.digest, found)
        return self._hit(request, found, where, missed.asked_ns)

    def _answered(self, answered: Sequence[Answered]) -> None:
        """Kept first, so that who has an answer and asks again gets the same one."""
        if not self._missed:
            self._sink(answered)
            return
        joined: list[Answered] = []
        again: list[Request] = []
        for request, answer in answered:
            missed = self._missed.pop(request, None)
            if missed is not None:
                self._keep(request, missed, answer)
                others = self._flights.landed(request, missed.digest)
                if answer.error is None:
                    joined += [(other, self._joined(other, answer)) for other in others]
                elif isinstance(answer.error, Cancelled):
                    leads, digest = self._flights.leads, missed.digest
                    again += [other for other in others if leads(other, digest)]
                else:  # what failed one of them need not fail them all
                    again += others
        self._sink([*answered, *joined] if joined else answered)
        if again:
            self._engine.submit(again)

    def _joined(self, request: Request, answer: Answer) -> Answer:
        missed = self._missed.pop(request)
        self._statistics.missed(request.model, request.version, missed.took_ns)
        run = _RUNS[JOINED]
        if request.explain:
            run = Run(explanation=f"cache={JOINED}", cached=JOINED)
        return answer._replace(run=run)

    def _keep(self, request: Request, missed: _Missed, answer: Answer) -> None:
        """Unless it failed, or came of another content than the one it was asked of: its model
        was loaded anew meanwhile."""
        took_ns = missed.took_ns
        if answer.error is None:
            started_ns = self._clock()
            self._put(missed, answer, started_ns)
            took_ns += self._clock() - started_ns
        self._statistics.missed(request.model, request.version, took_ns)

    def _put(self, missed: _Missed, answer: Answer, now: int) -> None:
        rule = missed.rule
        if answer.run.content != rule.content:
            self._metrics.unkept("reloaded")
            return
        made = kept(answer, now, rule.ttl_ns, rule.stale_ns)
        if not self._memory.put(missed.digest, made):
            self._metrics.unkept("too_large")
        if self._shared is not None:
            self._shared.put(missed.digest, made)

    def __repr__(self) -> str:
        return f"<CachedEngine {self._rules!r} {self._memory!r} {self._shared!r}>"
