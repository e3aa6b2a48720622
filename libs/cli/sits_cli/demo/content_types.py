"""What kind of file is this? Answered by magika, checked against what we know."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tritonclient import grpc as triton

from sits_cli.demo.calls import Call, send
from sits_cli.demo.samples import Sample
from sits_cli.front import Client, Message

MODEL = "magika"
EDGE_BYTES, BLOCK_BYTES, PADDING = 1024, 4096, 256
TOLERATED = 0.05
"""The model itself errs now and then; a mesh that mixes up answers errs far more often."""


@dataclass(frozen=True, slots=True)
class Guess:
    """`score` is the model's confidence, 0 to 1."""

    name: str
    kind: str
    answer: str
    score: float

    @property
    def right(self) -> bool:
        return self.answer == self.kind


@dataclass(frozen=True, slots=True)
class ContentTypes:
    guesses: tuple[Guess, ...]

    @property
    def right_count(self) -> int:
        return sum(guess.right for guess in self.guesses)

    @property
    def right(self) -> bool:
        wrong = len(self.guesses) - self.right_count
        return bool(self.guesses) and wrong <= TOLERATED * len(self.guesses)


def run(client: Client, samples: list[Sample]) -> ContentTypes:
    """One request a file, all in flight at once, so that they share batches."""
    calls = [(sample, _ask(client, sample)) for sample in samples]
    guesses = []
    for sample, call in calls:
        answer, score = _best(call.result())
        guesses.append(Guess(sample.name, sample.kind, answer, score))
    return ContentTypes(tuple(guesses))


def features(data: bytes) -> NDArray[np.int32]:
    """[1, 2048] as magika's own preprocessing makes it: 1,024 bytes of each end, without the
    white space there, padded on the inner side."""
    head = data[:BLOCK_BYTES].lstrip()[:EDGE_BYTES]
    tail = data[-BLOCK_BYTES:].rstrip()[-EDGE_BYTES:]
    row = np.full(2 * EDGE_BYTES, PADDING, np.int32)
    row[: len(head)] = np.frombuffer(head, np.uint8)
    row[2 * EDGE_BYTES - len(tail) :] = np.frombuffer(tail, np.uint8)
    return row[np.newaxis]


def _ask(client: Client, sample: Sample) -> Call:
    values = triton.InferInput("bytes", [1, 2 * EDGE_BYTES], "INT32")
    values.set_data_from_numpy(features(sample.data))
    best = triton.InferRequestedOutput("target_label", class_count=1)
    return send(client, MODEL, [values], outputs=[best])


def _best(result: Message) -> tuple[str, float]:
    """Of the classification extension's "score:index:label"."""
    score, _, label = result.as_numpy("target_label").reshape(-1)[0].decode().split(":", 2)
    return label, float(score)
