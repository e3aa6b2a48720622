"""A pipeline as a graph of steps with a precision and a memory on each edge, made into the
sequence of runs and conversions that a batch goes through. Pure.

A tensor is kept in the precision in which it was made. Neighbours of equal precision and memory
take it as it is; they make up a `stage`. It is converted once for each other form that some
step needs, as soon as it is there, and not by the steps.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, NamedTuple

from sits_core.pipeline import Pipeline, Step
from sits_executor.backends.base import Memory
from sits_executor.contract import Contract

FLOATS: Final = frozenset(("FP32", "FP16", "BF16"))
COMMON: Final = "FP32"
"""What every step would take and give if each converted for itself."""


class Form(NamedTuple):
    """A tensor in one precision and one memory."""

    tensor: str
    datatype: str
    memory: Memory

    def __str__(self) -> str:
        return f"{self.tensor}:{self.datatype}"


@dataclass(frozen=True, slots=True)
class Node:
    """A step, what it takes and gives, and where its arrays lie."""

    step: Step
    contract: Contract
    memory: Memory

    def needs(self) -> dict[str, Form]:
        """Forms by name of the model's input."""
        inputs = self.contract.inputs
        return {
            name: Form(tensor, inputs[name].datatype, self.memory)
            for name, tensor in self.step.inputs.items()
        }

    def makes(self) -> dict[str, Form]:
        """Forms by name of the model's output, of those that the pipeline names."""
        types = {output.name: output.datatype for output in self.contract.outputs}
        return {
            name: Form(tensor, types[name], self.memory)
            for name, tensor in self.step.outputs.items()
        }


class Convert(NamedTuple):
    source: Form
    target: Form


class RunStep(NamedTuple):
    node: Node


Action = Convert | RunStep


class Graph:
    """`actions` in the order in which they are done; `results` are the forms of the outputs."""

    def __init__(
        self, pipeline: Pipeline, own: Contract, nodes: Sequence[Node], host: Memory,
        *, merge: bool = True,
    ) -> None:  # fmt: skip
        """`nodes` in the pipeline's order. Without `merge` every step converts its inputs from
        and its outputs to FP32: what the graph is there to avoid, for comparison."""
        self.nodes, self._merge = tuple(nodes), merge
        self.inputs = [Form(name, own.inputs[name].datatype, host) for name in pipeline.inputs]
        self.results = [Form(output.name, output.datatype, host) for output in own.outputs]
        self.actions = tuple(self._actions())

    @property
    def conversions(self) -> list[Convert]:
        return [action for action in self.actions if isinstance(action, Convert)]

    def stages(self) -> list[list[Node]]:
        """Steps between which nothing is converted or moved."""
        groups = groupby(self.actions, lambda action: isinstance(action, RunStep))
        runs = ([a.node for a in group if isinstance(a, RunStep)] for _, group in groups)
        return [nodes for nodes in runs if nodes]

    def __str__(self) -> str:
        return " → ".join(
            f"({action.source} → {action.target.datatype}@{action.target.memory!r})"
            if isinstance(action, Convert)
            else action.node.step.model
            for action in self.actions
        )

    def _actions(self) -> Iterator[Action]:
        there = {form.tensor: form for form in self.inputs}
        done = set(self.inputs)
        if not self._merge:
            yield from self._commonly(self.inputs, there, done)
        for index, node in enumerate(self.nodes):
            yield from self._ways(node.needs().values(), there, done)
            yield RunStep(node)
            made = list(node.makes().values())
            there |= {form.tensor: form for form in made}
            done.update(made)
            if self._merge:
                yield from self._ahead(index, made, there, done)
            else:
                yield from self._commonly(made, there, done)
        yield from self._ways(self.results, there, done)

    def _ahead(
        self, index: int, made: Iterable[Form], there: Mapping[str, Form], done: set[Form]
    ) -> Iterator[Convert]:
        """What later steps need in another form is started now; so is what the next step needs
        of the request: while this one runs on its device, the host has time."""
        fresh = {form.tensor for form in made}
        later = [form for node in self.nodes[index + 1 :] for form in node.needs().values()]
        wanted = [form for form in later if form.tensor in fresh]
        if index + 1 < len(self.nodes):
            wanted += self.nodes[index + 1].needs().values()
        yield from self._ways(wanted, there, done)

    def _commonly(
        self, forms: Iterable[Form], there: dict[str, Form], done: set[Form]
    ) -> Iterator[Convert]:
        """Into FP32, from which whoever needs it converts again."""
        for form in forms:
            if form.datatype in FLOATS and form.datatype != COMMON:
                common = form._replace(datatype=COMMON)
                done.add(common)
                there[form.tensor] = common
                done.discard(form)
                yield Convert(form, common)

    def _ways(
        self, wanted: Iterable[Form], there: Mapping[str, Form], done: set[Form]
    ) -> Iterator[Convert]:
        for form in wanted:
            if form not in done:
                done.add(form)
                yield Convert(there[form.tensor], form)


def lasts(graph: Graph) -> dict[int, list[Form]]:
    """Forms that nobody needs after the action of that position: their memory can go."""
    last: dict[Form, int] = {}
    for position, action in enumerate(graph.actions):
        for form in _touched(action):
            last[form] = position
    kept = set(graph.results)
    gone: dict[int, list[Form]] = {}
    for form, position in last.items():
        if form not in kept:
            gone.setdefault(position, []).append(form)
    return gone


def _touched(action: Action) -> Iterator[Form]:
    if isinstance(action, Convert):
        yield from (action.source, action.target)
    else:
        yield from action.node.needs().values()
        yield from action.node.makes().values()
