"""Do two sentences mean the same? Answered by MiniLM, with sentences of any length."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tritonclient import grpc as triton

from sits_cli.demo.calls import Call, send
from sits_cli.front import Client

MODEL = "minilm"
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
PARAPHRASES = (
    ("A man is playing a guitar on stage.", "Someone performs guitar music in front of people."),
    ("The stock market fell sharply today.", "Share prices dropped steeply on Tuesday's exchange."),
    ("How do I reset my password?", "I forgot my password, how can I change it?"),
    ("The cat sleeps on the warm sofa.", "A kitten is napping on the couch."),
)
UNRELATED = (
    ("A man is playing a guitar on stage.", "The reactor's coolant pump needs a new seal."),
    ("The stock market fell sharply today.", "A kitten is napping on the couch."),
    ("How do I reset my password?", "Penguins breed on the Antarctic ice in winter."),
    ("The cat sleeps on the warm sofa.", "Quarterly tax returns are due by the end of April."),
)


@dataclass(frozen=True, slots=True)
class Pair:
    first: str
    second: str
    alike: bool
    cosine: float


@dataclass(frozen=True, slots=True)
class Similarity:
    pairs: tuple[Pair, ...]

    @property
    def right(self) -> bool:
        """Every paraphrase scores above every unrelated pair."""
        alike = [pair.cosine for pair in self.pairs if pair.alike]
        other = [pair.cosine for pair in self.pairs if not pair.alike]
        return min(alike) > max(other)


def run(client: Client, repository: Path) -> Similarity:
    tokenizer = Tokenizer.from_file(str(repository / MODEL / "tokenizer.json"))
    tokenizer.no_padding()
    sentences = dict.fromkeys(text for pair in (*PARAPHRASES, *UNRELATED) for text in pair)
    calls = {text: _ask(client, tokenizer, text) for text in sentences}
    vectors = {text: embedding(call.result().as_numpy("last_hidden_state"))
               for text, call in calls.items()}  # fmt: skip
    return Similarity(
        tuple(
            Pair(first, second, alike, float(vectors[first] @ vectors[second]))
            for pairs, alike in ((PARAPHRASES, True), (UNRELATED, False))
            for first, second in pairs
        )
    )


def embedding(hidden: NDArray[np.float32]) -> NDArray[np.float32]:
    """Mean over the tokens of [1, tokens, 384], as a unit vector."""
    mean = hidden[0].mean(axis=0)
    unit: NDArray[np.float32] = mean / np.linalg.norm(mean)
    return unit


def _ask(client: Client, tokenizer: Tokenizer, text: str) -> Call:
    encoded = tokenizer.encode(text)
    rows = (encoded.ids, encoded.attention_mask, encoded.type_ids)
    inputs = []
    for name, row in zip(INPUTS, rows, strict=True):
        inputs.append(triton.InferInput(name, [1, len(row)], "INT64"))
        inputs[-1].set_data_from_numpy(np.array([row], np.int64))
    return send(client, MODEL, inputs)
