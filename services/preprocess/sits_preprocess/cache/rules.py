"""Whose answers are kept, for how long, and what makes two requests the same."""

import hashlib
import struct
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Final, NamedTuple

import structlog

from sits_core.clock import now_ns
from sits_core.response_cache import cache_rule
from sits_preprocess.oip.signature import Signature
from sits_preprocess.request import Request

log = structlog.get_logger()

DIGEST_BYTES: Final = 16
PAUSE_NS: Final = 1_000_000_000
"""By then every executor's new announcement is here: it takes milliseconds."""
MAX_HEADS: Final = 1024
"""Then all are forgotten, and those in use come back."""
_FORM: Final = b"sits.answer.1"
"""Leads what is digested: another form, other digests."""


class Rule(NamedTuple):
    """Of one loaded version. `prefix` is what all its keys begin with; `content` what an answer
    must come from to be kept; `shared`: by all tenants."""

    prefix: bytes
    content: bytes
    ttl_ns: int
    stale_ns: int
    shared: bool


class Rules:
    """Remembers one rule for each name and version; a reloaded model replaces its own."""

    def __init__(self, default_ttl_s: float, clock: Callable[[], int] = now_ns) -> None:
        self._default_ttl_s, self._clock = default_ttl_s, clock
        self._paused: dict[str, int] = {}
        self._known: dict[tuple[str, str], tuple[Signature, Rule | None]] = {}

    def of(self, request: Request) -> Rule | None:
        """None when answers like this one are not kept now."""
        if self._paused and self._is_paused(request.model):
            return None
        known = self._known.get((request.model, request.version))
        if known is None or known[0] is not request.signature:
            known = self._learn(request)
        return None if known is None else known[1]

    def keeps(self, model: str, version: str) -> bool:
        """Whether answers of it were kept when it was last asked."""
        known = self._known.get((model, version))
        return known is not None and known[1] is not None

    def pause(self, model: str) -> None:
        """It was loaded, and who had that done expects its new answers, although it may not be
        announced here yet."""
        self._paused[model] = self._clock() + PAUSE_NS

    def _is_paused(self, model: str) -> bool:
        until_ns = self._paused.get(model, 0)
        if until_ns and self._clock() >= until_ns:
            self._paused.pop(model, None)
        return self._clock() < until_ns

    def _learn(self, request: Request) -> tuple[Signature, Rule | None] | None:
        signature = request.signature
        if signature is None:
            return None
        known = signature, self._rule(signature)
        self._known[request.model, request.version] = known
        return known

    def _rule(self, signature: Signature) -> Rule | None:
        model = signature.model
        try:
            asked = cache_rule(model.config)
        except ValueError as error:  # of an executor that is older than this front door
            log.warning("response_cache.wrong_parameter", model=model.name, cause=str(error))
            return None
        if asked is None or not model.content:
            return None
        ttl_s = self._default_ttl_s if asked.ttl_s is None else asked.ttl_s
        prefix = _joined((_FORM, model.name.encode(), model.version.encode(), model.content))
        return Rule(prefix, model.content, int(ttl_s * 1e9), int(asked.stale_s * 1e9), asked.shared)

    def __repr__(self) -> str:
        kept = sum(rule is not None for _, rule in self._known.values())
        return f"<Rules {kept} of {len(self._known)} models are kept>"


class Digests:
    """Of everything that an answer depends on: the model's content, tenant, parameters of the
    model, outputs and their order, inputs with names, datatypes and shapes. Not of what is
    applied to it afterwards, nor of priority, deadline and id.

    All but the data is the same in most requests of a model and tenant: its digest is remembered.
    Safe from any thread: the worst that a race costs is to make it once more.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, hashlib.blake2b] = {}

    def of(self, request: Request, rule: Rule) -> bytes:
        inputs = request.inputs
        if request.parameters:
            made = _head(request, rule)
        else:
            key = (
                rule.prefix, request.tenant, request.outputs,
                *[(name, datatype, shape, len(data)) for name, datatype, shape, data in inputs],
            )  # fmt: skip
            made = (self._known.get(key) or self._learn(key, request, rule)).copy()
        for tensor in inputs:
            made.update(tensor.data)
        return made.digest()

    def _learn(self, key: Hashable, request: Request, rule: Rule) -> hashlib.blake2b:
        if len(self._known) >= MAX_HEADS:
            self._known = {}
        made = self._known[key] = _head(request, rule)
        return made

    def __repr__(self) -> str:
        return f"<Digests knows {len(self._known)} of {MAX_HEADS}>"


def _head(request: Request, rule: Rule) -> hashlib.blake2b:
    """Of all but the data, whose lengths are in here: no two requests with other tensors look
    alike."""
    made = hashlib.blake2b(rule.prefix, digest_size=DIGEST_BYTES)
    made.update(_joined(_asked(request, rule)))
    for name, datatype, shape, data in request.inputs:
        size = struct.pack(f"<{len(shape) + 1}Q", *shape, len(data))
        made.update(_joined((name.encode(), datatype.encode(), size)))
    return made


def _asked(request: Request, rule: Rule) -> Iterator[bytes]:
    yield b"" if rule.shared else request.tenant.encode()
    yield struct.pack(f"<{len(request.outputs)}I", *request.outputs)
    for name, value in sorted(request.parameters.items()):
        yield name.encode()
        yield f"{type(value).__name__} {value!r}".encode()
    yield struct.pack("<I", len(request.inputs))


def _joined(parts: Iterable[bytes]) -> bytes:
    """Each part led by its length, the whole by their number: no two lists look alike."""
    listed = list(parts)
    led = [struct.pack("<I", len(part)) + part for part in listed]
    return struct.pack("<I", len(listed)) + b"".join(led)
