"""Prints the demo's results for people."""

from rich.text import Text

from sits_cli.demo.content_types import ContentTypes
from sits_cli.demo.similarity import Similarity
from sits_cli.demo.stages import Stages
from sits_cli.demo.throughput import Load, Throughput
from sits_cli.output import Column, bad, console, duration, good, print_drawn, print_table, say
from sits_cli.waterfall_view import bar_width, draw


def heading(text: str) -> None:
    say(f"\n[bold underline]{text}[/]\n")


def content_types(result: ContentTypes) -> None:
    print_table(
        ("file", "expected", "answer", Column("score", right=True), ""),
        (
            (guess.name, guess.kind, guess.answer, f"{guess.score:.3f}", _verdict(guess.right))
            for guess in result.guesses
        ),
    )
    say(f"\n[bold]{result.right_count} of {len(result.guesses)} right[/]")


def similarity(result: Similarity) -> None:
    print_table(
        ("sentence", "other sentence", "meant", Column("cosine", right=True)),
        (
            (pair.first, pair.second, "same" if pair.alike else "unrelated", f"{pair.cosine:.2f}")
            for pair in result.pairs
        ),
    )
    all_above = "Every paraphrase scores above every unrelated pair: "
    console().print(Text.assemble("\n", all_above, _verdict(result.right)))


def throughput(result: Throughput) -> None:
    print_table(
        ("model", Column("requests/s", right=True), Column("requests per run", right=True),
         Column("answers", right=True), Column("wrong", right=True)),
        map(_load, (result.unbatched, result.batched)),
    )  # fmt: skip
    say(f"\nBatching gives [bold]{result.ratio:.1f} times[/] the throughput.")


def stages(result: Stages) -> None:
    print_table(
        ("stage", *(Column(title, right=True) for title in ("p50", "p99", "spans"))),
        (
            (stage.name, duration(stage.p50_s), duration(stage.p99_s), str(stage.count))
            for stage in result.stages
        ),
    )


def trace(result: Stages) -> None:
    target = console()
    print_drawn(draw(result.waterfall, bar_width(target)), target)


def _load(load: Load) -> tuple[str, ...]:
    return (
        load.model, f"{load.per_s:,.0f}", f"{load.rows_per_run:.1f}", f"{load.answered:,}",
        str(load.wrong + load.failed),
    )  # fmt: skip


def _verdict(right: bool) -> Text:
    return good("right") if right else bad("wrong")
