"""A graph in the form that the hot path runs: numbered places, and what is done with them in order.

Everything that is the same for every batch is decided here, once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from sits_executor.backends.base import Arrays, Memory, Parameters, Resident, Stored
from sits_executor.contract import Contract, TensorContract
from sits_executor.pipelines.graph import Convert, Form, Graph, Node, lasts
from sits_executor.pipelines.host import HOST
from sits_executor.repository.sharing import Shared

Places = list[Stored | None]
"""None = not made yet, needed no more, or an optional input that the request left out."""


@dataclass(frozen=True, slots=True, eq=False)
class OpenStep:
    """A step whose model is held. `ran` counts a run of it, in seconds."""

    shared: Shared
    ran: Callable[[float], None]
    resident: Resident | None

    def run(self, inputs: Mapping[str, Stored], parameters: Parameters) -> Mapping[str, Stored]:
        if self.resident is not None:
            return self.resident.run_resident(inputs, parameters)
        return self.shared.backend.run(inputs, parameters)  # type: ignore[arg-type]


class Port(NamedTuple):
    """A tensor of a step under its name there. `sure`: who made it has checked its shape."""

    name: str
    place: int
    contract: TensorContract
    sure: bool = False


class Run(NamedTuple):
    """`gone` are places that nobody needs afterwards."""

    node: Node
    opened: OpenStep
    takes: tuple[Port, ...]
    gives: tuple[Port, ...]
    gone: tuple[int, ...]


class Change(NamedTuple):
    source: int
    target: int
    convert: Callable[[Stored], Stored]
    gone: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """`inputs` and `results` are names of the pipeline and their places."""

    inputs: tuple[tuple[str, int], ...]
    results: tuple[tuple[str, int], ...]
    actions: tuple[Run | Change, ...]
    size: int

    def places(self, inputs: Arrays) -> Places:
        places: Places = [None] * self.size
        for name, place in self.inputs:
            places[place] = inputs.get(name)
        return places


def compiled(graph: Graph, own: Contract, opened: Sequence[OpenStep]) -> Program:
    """`opened` in the order of the graph's nodes."""
    numbers: dict[Form, int] = {}
    steps = {id(node): step for node, step in zip(graph.nodes, opened, strict=True)}
    checked = _checked(graph, own)

    def place(form: Form) -> int:
        return numbers.setdefault(form, len(numbers))

    inputs = tuple((form.tensor, place(form)) for form in graph.inputs)
    gone, actions = lasts(graph), list[Run | Change]()
    for position, action in enumerate(graph.actions):
        after = tuple(place(form) for form in gone.get(position, ()))
        if isinstance(action, Convert):
            way = conversion(action)
            actions.append(Change(place(action.source), place(action.target), way, after))
            continue
        node = action.node
        takes = tuple(
            Port(name, place(form), expected, _sure(form, expected, node, checked))
            for name, form in node.needs().items()
            for expected in (node.contract.inputs[name],)
        )
        declared = {output.name: output for output in node.contract.outputs}
        gives = tuple(
            Port(name, place(form), declared[name]) for name, form in node.makes().items()
        )
        actions.append(Run(node, steps[id(node)], takes, gives, after))
    results = tuple((form.tensor, place(form)) for form in graph.results)
    return Program(inputs, results, tuple(actions), len(numbers))


def conversion(action: Convert) -> Callable[[Stored], Stored]:
    """On the device if there is one: from the host before, to the host after the way."""
    source, target = action.source, action.target
    cast = partial(_cast, target.datatype)
    if source.memory == target.memory:
        return partial(cast, source.memory)
    differs = source.datatype != target.datatype
    on_source = source.memory is not HOST and target.memory is HOST
    steps: list[Callable[[Stored], Stored]] = []
    if differs and on_source:
        steps.append(partial(cast, source.memory))
    steps.append(partial(_moved, source.memory, target.memory))
    if differs and not on_source:
        steps.append(partial(cast, target.memory))
    return steps[0] if len(steps) == 1 else partial(_both, steps[0], steps[1])


def _cast(datatype: str, memory: Memory, stored: Stored) -> Stored:
    return memory.cast(stored, datatype)


def _moved(source: Memory, target: Memory, stored: Stored) -> Stored:
    array = source.get(stored)
    return array if target is HOST else target.put(array)


def _both(
    first: Callable[[Stored], Stored], second: Callable[[Stored], Stored], stored: Stored
) -> Stored:
    return second(first(stored))


def _checked(graph: Graph, own: Contract) -> dict[str, tuple[bool, tuple[int, ...]]]:
    """By tensor: whether its maker batches, and the dims that it was checked against."""
    inputs = own.inputs.values()
    known = {t.name: (own.batches, t.dims if t.inner is None else t.inner) for t in inputs}
    for node in graph.nodes:
        outputs = {output.name: output for output in node.contract.outputs}
        for name, tensor in node.step.outputs.items():
            known[tensor] = (node.contract.batches, outputs[name].dims)
    return known


def _sure(
    form: Form,
    expected: TensorContract,
    node: Node,
    checked: Mapping[str, tuple[bool, tuple[int, ...]]],
) -> bool:
    return expected.inner is None and checked[form.tensor] == (
        node.contract.batches,
        expected.dims,
    )
