"""From a draft to a request that can be batched and run, or to the error that says why not."""

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, Protocol

from sits_core.clock import Deadline, earliest
from sits_core.errors import SitsError, Unimplemented
from sits_core.tracing import TraceContext
from sits_preprocess.access import EXPLAIN_HEADER, TENANT_HEADER, Access
from sits_preprocess.catalog import Catalog
from sits_preprocess.metadata import check_model_name
from sits_preprocess.oip.draft import Draft, Unread
from sits_preprocess.oip.limits import with_request_id
from sits_preprocess.oip.parameters import NO_OPTIONS, Options, read_options
from sits_preprocess.oip.signature import Signature, Signatures
from sits_preprocess.oip.tensors import rows_of
from sits_preprocess.request import Parameters, Request, TensorData
from sits_preprocess.shared_memory import Regions
from sits_preprocess.transport.call import Metadata


class Caller(Protocol):
    """Every call is one."""

    @property
    def metadata(self) -> Metadata: ...
    @property
    def deadline(self) -> Deadline | None: ...


class Origin(NamedTuple):
    """What a call's metadata says about every request that it brings."""

    key_tenant: str
    named_tenant: str
    deadline: Deadline | None
    traceparent: str | None
    explain: bool = False


class Admission:
    """Checks against the catalog, the caller's rights and the protocol's rules."""

    def __init__(
        self,
        catalog: Catalog,
        access: Access,
        regions: Regions,
        sample: Callable[[str, str | None], TraceContext | None],
        new_span_id: Callable[[], bytes],
        default_timeout_s: float,
    ) -> None:
        self._catalog, self._access, self._regions = catalog, access, regions
        self._sample, self._new_span_id = sample, new_span_id
        self.default_timeout_s = default_timeout_s
        self._signatures = Signatures()

    def origin(self, call: Caller) -> Origin:
        """Raises `Unauthenticated` when the call lacks a key it needs."""
        metadata = call.metadata
        return Origin(
            self._access.require_client(metadata),
            metadata.get(TENANT_HEADER, ""),
            call.deadline,
            metadata.get("traceparent"),
            metadata.get(EXPLAIN_HEADER) == "true",
        )

    def tenant(self, origin: Origin) -> str:
        """Whom to account a request to that could not be read."""
        return origin.key_tenant or self._access.default_tenant

    def name(self, message: Unread, origin: Origin, into: Request) -> bool:
        """Fill in model, version, tenant and deadline without reading the rest. False when
        they cannot be told. Raises `SitsError` for names and tenants that cannot be."""
        names = message.names()
        if names is None:
            return False
        model = self._catalog.find(*names)
        into.model, into.version = model.name, model.version
        into.tenant = self._access.tenant(origin.key_tenant, origin.named_tenant)
        into.deadline = self._deadline(origin, NO_OPTIONS, into.received_ns)
        return True

    def check(self, draft: Draft, origin: Origin, into: Request) -> None:
        """Fill `into` step by step. Raises `SitsError`.

        Whatever happens, the caller releases `into.wanted`.
        """
        into.id = draft.id
        into.signature = signature = self._signature(draft)
        into.model, into.version = signature.model.name, signature.model.version
        try:
            self._fill(draft, origin, signature, into)
        except SitsError as error:
            raise with_request_id(error, draft.id) from None

    def _signature(self, draft: Draft) -> Signature:
        try:
            model = self._catalog.find(draft.model, draft.version)
        except SitsError:
            check_model_name(draft.model)
            raise
        signature = self._signatures.of(model)
        if signature.decoupled:
            raise Unimplemented(
                "ModelInfer RPC doesn't support models with decoupled transaction policy"
            )
        return signature

    def _fill(self, draft: Draft, origin: Origin, signature: Signature, into: Request) -> None:
        parameters = draft.parameters()
        options = read_options(parameters) if parameters else NO_OPTIONS
        into.tenant = self._access.tenant(origin.key_tenant, options.tenant or origin.named_tenant)
        into.priority, into.parameters = options.priority, options.custom
        into.explain = options.explain or origin.explain
        into.deadline = self._deadline(origin, options, into.received_ns)
        self._trace(origin, into)
        into.inputs = inputs = draft.inputs(signature, self._regions)
        into.rows = rows_of(signature, inputs)
        into.payload_bytes = sum([len(tensor.data) for tensor in inputs])
        into.key = batch_key(signature, inputs, options.custom)
        into.wanted = wanted = draft.outputs(signature, self._regions)
        if wanted:
            into.outputs = tuple([output.position for output in wanted])

    def _trace(self, origin: Origin, into: Request) -> None:
        """Our span is recorded at the end, but what happens below it needs its id now."""
        into.parent = parent = self._sample(into.model, origin.traceparent)
        if parent is not None:
            into.trace = TraceContext(parent.trace_id, self._new_span_id())

    def _deadline(self, origin: Origin, options: Options, now: int) -> Deadline | None:
        """The earlier of the call's and the request's; the server's own where neither is."""
        limit_s = options.timeout_us / 1e6
        if not limit_s and origin.deadline is None:
            limit_s = self.default_timeout_s
        return (
            earliest(origin.deadline, Deadline.after(limit_s, now)) if limit_s else origin.deadline
        )


def batch_key(
    signature: Signature, inputs: Sequence[TensorData], parameters: Parameters
) -> Hashable:
    """Requests of a model with equal keys may share a run: same inputs, shapes, parameters."""
    if signature.max_batch_size <= 0 or (signature.fixed and not parameters):
        return ()
    shapes = tuple([(tensor.name, tensor.shape[1:]) for tensor in inputs])
    # By type and text: to Python 1, True and 1.0 are equal, and so are 0.0 and -0.0.
    given = [(name, type(value), repr(value)) for name, value in parameters.items()]
    return shapes, frozenset(given)
