"""Runs a pipeline as one model: the actions of its graph, one after the other."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from sits_core.clock import now_ns
from sits_core.datatypes import Array
from sits_core.errors import Internal, SitsError
from sits_executor.backends.base import Arrays, Memory, Parameters, Resident, Signature, Stored
from sits_executor.contract import Contract, fits, reshaped
from sits_executor.pipelines.graph import Graph, Node
from sits_executor.pipelines.host import HOST
from sits_executor.pipelines.program import Change, OpenStep, Places, Port, Run, compiled
from sits_executor.safe import safe_cause


class StepFailed(Internal):
    """A step of a pipeline raised, or gave what it does not declare. Names the step."""

    reason = "STEP_FAILED"


class GivenUp(Exception):
    """Nobody waits any more: the steps that are left were not begun."""


class StepRun(NamedTuple):
    """What one step of one batch took. Of steps that stay on a device, those before the last
    only count what it took to start them."""

    model: str
    version: str
    rows: int
    wait_ns: int
    input_ns: int
    infer_ns: int


class Traced(dict[str, Array]):
    """The outputs of a pipeline, and what its steps took."""

    steps: tuple[StepRun, ...] = ()


class PipelineBackend:
    """`opened` are the steps in the graph's order. Closing lets go of them."""

    fallback = ""
    signature: Signature | None = None

    def __init__(self, graph: Graph, own: Contract, opened: Sequence[OpenStep]) -> None:
        self.graph, self._opened = graph, tuple(opened)
        self._batches = own.batches and all(node.contract.batches for node in graph.nodes)
        self._program = compiled(graph, own, opened)
        self._memories = [m for m in dict.fromkeys(n.memory for n in graph.nodes) if m is not HOST]

    @property
    def parallel(self) -> int:
        """How many batches can be at its steps at once."""
        return sum(step.shared.instances for step in self._opened)

    @property
    def models(self) -> frozenset[str]:
        """Names of the models that it is made of."""
        return frozenset(node.step.model for node in self.graph.nodes)

    @property
    def contents(self) -> tuple[bytes, ...]:
        """Of the models that it is made of, in the order of its steps."""
        return tuple(node.contract.content for node in self.graph.nodes)

    def run(self, inputs: Arrays, parameters: Parameters) -> Arrays:
        """Raises `StepFailed`, and what a step raised of our own errors."""
        return self.run_while(inputs, parameters, _always)

    def run_while(
        self, inputs: Arrays, parameters: Parameters, wanted: Callable[[], bool]
    ) -> Arrays:
        """As `run`; asks between steps, and raises `GivenUp` when it is not wanted any more."""
        if not self._memories:
            return self._run(inputs, parameters, wanted)
        with ExitStack() as stack:
            for memory in self._memories:
                stack.enter_context(memory.working())
            return self._run(inputs, parameters, wanted)

    def _rows(self, inputs: Arrays) -> int:
        """That every tensor of a pipeline that batches leads with; -1 = each step looks itself."""
        if not self._batches:
            return -1
        return len(next(iter(inputs.values())))

    def close(self) -> None:
        for step in self._opened:
            step.shared.release()

    def _run(self, inputs: Arrays, parameters: Parameters, wanted: Callable[[], bool]) -> Arrays:
        places, steps = self._program.places(inputs), list[StepRun]()
        rows = self._rows(inputs)
        since_ns = now_ns()
        for action in self._program.actions:
            if isinstance(action, Change):
                source = places[action.source]
                if source is not None:
                    places[action.target] = action.convert(source)
            else:
                if steps and not wanted():
                    raise GivenUp
                steps.append(_step(action, places, parameters, since_ns, rows))
                since_ns = now_ns()
            for place in action.gone:
                places[place] = None
        outputs = Traced()
        for name, place in self._program.results:
            outputs[name] = HOST.get(places[place])
        # The way back to the host is the last step's: there a device is waited for.
        last = steps[-1]
        steps[-1] = last._replace(infer_ns=last.infer_ns + now_ns() - since_ns)
        outputs.steps = tuple(steps)
        return outputs


def _always() -> bool:
    return True


def memory_of(backend: object) -> Memory:
    return backend.home if isinstance(backend, Resident) else HOST


def _step(
    action: Run, places: Places, parameters: Parameters, since_ns: int, known_rows: int
) -> StepRun:
    """`since_ns`: when its inputs began to be made ready."""
    node, opened, asked_ns = action.node, action.opened, now_ns()
    contract = node.contract
    try:
        arrays, rows = _inputs(action, places, known_rows)
        opened.shared.begin()
        started_ns = now_ns()
        try:
            results = opened.run(arrays, parameters)
        finally:
            opened.shared.end()
        ended_ns = now_ns()
        _keep(action, results, rows, places)
    except SitsError:
        raise
    except Exception as error:
        raise StepFailed(f"{node.step}: {safe_cause(error)}") from error
    opened.ran((ended_ns - started_ns) / 1e9)
    return StepRun(
        contract.model, contract.version, rows or 1, started_ns - asked_ns, asked_ns - since_ns,
        ended_ns - started_ns,
    )  # fmt: skip


def _inputs(action: Run, places: Places, known_rows: int) -> tuple[dict[str, Stored], int]:
    """What the model takes, in the shapes that it uses itself, and its rows (0 = it does not
    batch). Inputs that the request left out are left out."""
    arrays: dict[str, Stored] = {}
    rows, batches = known_rows, action.node.contract.batches
    for port in action.takes:
        stored = places[port.place]
        if stored is None:
            continue
        if not port.sure or (batches and rows < 0):
            _, shape = action.node.memory.describe(stored)
            rows = _fitting_rows(action.node, port, shape)
            if port.contract.inner is not None:
                stored = _reshaped(action.node, stored, shape, port.contract.dims,
                                   port.contract.inner)  # fmt: skip
        arrays[port.name] = stored
    return arrays, rows if batches else 0


def _fitting_rows(node: Node, port: Port, shape: tuple[int, ...]) -> int:
    """Raises `StepFailed` for a shape that the model does not take."""
    lead = int(node.contract.batches)
    if not fits(shape[lead:], port.contract.dims) or len(shape) < lead:
        raise StepFailed(
            f"{node.step}: input '{port.name}' has shape {list(shape)}, expected "
            f"{[-1] * lead + list(port.contract.dims)} (-1 = any size)"
        )
    return shape[0] if lead else 0


def _keep(action: Run, results: Mapping[str, Stored], rows: int, places: Places) -> None:
    """The step's outputs, if they are what it declares. Raises `StepFailed`."""
    for port in action.gives:
        if port.name not in results:
            raise StepFailed(
                f"{action.node.step}: output '{port.name}' is missing from what it returned"
            )
        places[port.place] = _declared(action.node, port, results[port.name], rows)


def _declared(node: Node, port: Port, stored: Stored, rows: int) -> Stored:
    expected = port.contract
    datatype, shape = node.memory.describe(stored)
    lead = (rows,) if node.contract.batches else ()
    inner = expected.dims if expected.inner is None else expected.inner
    inside = shape[len(lead) :]
    fitting = inside == inner or fits(inside, inner)
    if datatype != expected.datatype or shape[: len(lead)] != lead or not fitting:
        raise StepFailed(
            f"{node.step}: output '{expected.name}' came as {datatype} {list(shape)}, declared is "
            f"{expected.datatype} {[*lead, *inner]}"
        )
    if expected.inner is None:
        return stored
    return _reshaped(node, stored, shape, inner, expected.dims)


def _reshaped(
    node: Node, stored: Stored, shape: tuple[int, ...], source: tuple[int, ...],
    target: tuple[int, ...],
) -> Stored:  # fmt: skip
    lead = int(node.contract.batches)
    return node.memory.reshape(stored, shape[:lead] + reshaped(shape[lead:], source, target))
