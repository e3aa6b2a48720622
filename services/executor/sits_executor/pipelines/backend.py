"""Runs a pipeline as one model: the actions of its graph, one after the other."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple

from sits_core.clock import now_ns
from sits_core.datatypes import Array
from sits_core.errors import Internal, SitsError
from sits_executor.backends.base import (
    Arrays,
    Memory,
    Parameters,
    Resident,
    Shape,
    Signature,
    Stored,
)
from sits_executor.contract import Contract, TensorContract, fits, reshaped
from sits_executor.pipelines.graph import Convert, Form, Graph, Node, lasts
from sits_executor.pipelines.host import HOST
from sits_executor.repository.sharing import Shared
from sits_executor.safe import safe_cause

Values = dict[Form, Stored]


class StepFailed(Internal):
    """A step of a pipeline raised, or gave what it does not declare. Names the step."""

    reason = "STEP_FAILED"


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


@dataclass(frozen=True, slots=True, eq=False)
class OpenStep:
    """A step whose model is held. `ran` counts a run of it, in seconds."""

    shared: Shared
    ran: Callable[[float], None]
    resident: Resident | None


class PipelineBackend:
    """`opened` are the steps in the graph's order. Closing lets go of them."""

    fallback = ""
    signature: Signature | None = None

    def __init__(self, graph: Graph, own: Contract, opened: tuple[OpenStep, ...]) -> None:
        self.graph, self._own = graph, own
        self._opened = dict(zip(map(id, graph.nodes), opened, strict=True))
        self._gone = lasts(graph)
        self._memories = [m for m in dict.fromkeys(n.memory for n in graph.nodes) if m is not HOST]

    @property
    def parallel(self) -> int:
        """How many batches can be at its steps at once."""
        return sum(step.shared.instances for step in self._opened.values())

    @property
    def models(self) -> frozenset[str]:
        """Names of the models that it is made of."""
        return frozenset(node.step.model for node in self.graph.nodes)

    def run(self, inputs: Arrays, parameters: Parameters) -> Arrays:
        """Raises `StepFailed`, and what a step raised of our own errors."""
        if not self._memories:
            return self._run(inputs, parameters)
        with ExitStack() as stack:
            for memory in self._memories:
                stack.enter_context(memory.working())
            return self._run(inputs, parameters)

    def close(self) -> None:
        for step in self._opened.values():
            step.shared.release()

    def _run(self, inputs: Arrays, parameters: Parameters) -> Arrays:
        values: Values = {
            form: inputs[form.tensor] for form in self.graph.inputs if form.tensor in inputs
        }
        steps: list[StepRun] = []
        converted_ns = 0
        for position, action in enumerate(self.graph.actions):
            started_ns = now_ns()
            if isinstance(action, Convert):
                if action.source in values:
                    values[action.target] = _converted(values[action.source], action)
                converted_ns += now_ns() - started_ns
            else:
                steps.append(self._step(action.node, values, parameters, converted_ns))
                converted_ns = 0
            for form in self._gone.get(position, ()):
                values.pop(form, None)
        return self._outputs(values, steps, converted_ns)

    def _step(
        self, node: Node, values: Values, parameters: Parameters, converted_ns: int
    ) -> StepRun:
        opened, asked_ns = self._opened[id(node)], now_ns()
        try:
            arrays, rows = _inputs(node, values)
            with opened.shared.turn() as backend:
                started_ns = now_ns()
                if opened.resident is not None:
                    results = opened.resident.run_resident(arrays, parameters)
                else:
                    results = backend.run(arrays, parameters)  # type: ignore[arg-type]
            ended_ns = now_ns()
            _keep(node, results, rows, values)
        except SitsError:
            raise
        except Exception as error:
            raise StepFailed(f"{node.step}: {safe_cause(error)}") from error
        opened.ran((ended_ns - started_ns) / 1e9)
        contract = node.contract
        return StepRun(
            contract.model, contract.version, max(1, rows), started_ns - asked_ns, converted_ns,
            ended_ns - started_ns,
        )  # fmt: skip

    def _outputs(self, values: Values, steps: list[StepRun], converted_ns: int) -> Traced:
        """The way back to the host counts as the last step's: that is where a device is
        waited for."""
        outputs = Traced({form.tensor: HOST.get(values[form]) for form in self.graph.results})
        if converted_ns:
            last = steps[-1]
            steps[-1] = last._replace(infer_ns=last.infer_ns + converted_ns)
        outputs.steps = tuple(steps)
        return outputs


def memory_of(backend: object) -> Memory:
    return backend.home if isinstance(backend, Resident) else HOST


def _converted(stored: Stored, action: Convert) -> Stored:
    """To the other memory on the way that converts on a device, if there is one."""
    source, target = action.source, action.target
    differs = source.datatype != target.datatype
    if source.memory == target.memory:
        return source.memory.cast(stored, target.datatype)
    if source.memory is not HOST:
        if differs and target.memory is HOST:
            stored, differs = source.memory.cast(stored, target.datatype), False
        stored = source.memory.get(stored)
    if target.memory is not HOST:
        stored = target.memory.put(HOST.get(stored))
    return target.memory.cast(stored, target.datatype) if differs else stored


def _inputs(node: Node, values: Values) -> tuple[dict[str, Stored], int]:
    """What the model takes, in the shapes that it uses itself, and its rows (0 = it does not
    batch). Inputs that the request left out are left out."""
    arrays: dict[str, Stored] = {}
    rows = 0
    for name, form in node.needs().items():
        if form not in values:
            continue
        stored, expected = values[form], node.contract.inputs[name]
        _, shape = node.memory.describe(stored)
        lead = shape[:1] if node.contract.batches else ()
        if not fits(shape[len(lead) :], expected.dims):
            raise StepFailed(
                f"{node.step}: input '{name}' has shape {list(shape)}, expected "
                f"{[*lead, *expected.dims]} (-1 = any size)"
            )
        rows = lead[0] if lead else 0
        arrays[name] = _inner(node.memory, stored, shape, lead, expected)
    return arrays, rows


def _inner(
    memory: Memory, stored: Stored, shape: Shape, lead: Shape, expected: TensorContract
) -> Stored:
    if expected.inner is None:
        return stored
    return memory.reshape(
        stored, lead + reshaped(shape[len(lead) :], expected.dims, expected.inner)
    )


def _keep(node: Node, results: Mapping[str, object], rows: int, values: Values) -> None:
    """The step's outputs, if they are what it declares. Raises `StepFailed`."""
    declared = {output.name: output for output in node.contract.outputs}
    for name, form in node.makes().items():
        if name not in results:
            raise StepFailed(f"{node.step}: output '{name}' is missing from what it returned")
        values[form] = _outer(node, results[name], declared[name], rows)


def _outer(node: Node, stored: Stored, expected: TensorContract, rows: int) -> Stored:
    datatype, shape = node.memory.describe(stored)
    lead = (rows,) if node.contract.batches else ()
    inner = expected.dims if expected.inner is None else expected.inner
    if (
        datatype != expected.datatype
        or shape[: len(lead)] != lead
        or not fits(shape[len(lead) :], inner)
    ):
        raise StepFailed(
            f"{node.step}: output '{expected.name}' came as {datatype} {list(shape)}, declared is "
            f"{expected.datatype} {[*lead, *inner]}"
        )
    if expected.inner is None:
        return stored
    return node.memory.reshape(stored, lead + reshaped(shape[len(lead) :], inner, expected.dims))
