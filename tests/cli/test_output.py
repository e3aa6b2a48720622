"""Numbers and tables that people can read, with and without a terminal."""

import pytest

from sits_cli.output import Column, duration, print_table, size


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 ns"), (8.12e-7, "812 ns"), (4.12e-5, "41.2 µs"), (3.214e-3, "3.21 ms"), (0.2, "200 ms"),
     (1.5, "1.50 s"), (75, "75.0 s"), (240, "4 min"), (7200, "2.0 h")],
)  # fmt: skip
def test_durations_have_three_digits_and_a_fitting_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(640, "640 B"), (12 << 10, "12.0 KiB"), (3 << 29, "1.50 GiB")]
)
def test_sizes_have_binary_units(count: int, text: str) -> None:
    assert size(count) == text


def test_columns_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", Column("n", right=True)), [("a", "1"), ("long", "1,000")])
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["name      n", "a         1", "long  1,000"]


def test_cells_are_never_read_as_markup(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name",), [("[bold]x[/bold] [/]",)])
    assert "[bold]x[/bold] [/]" in capsys.readouterr().out


def test_nothing_is_coloured_or_folded_without_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table(("name", "reason"), [("a", "word " * 30)])
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert len(out.splitlines()) == 2


@pytest.mark.parametrize("length", [5, 500])
def test_without_a_terminal_lines_are_as_wide_as_what_they_say(
    capsys: pytest.CaptureFixture[str], length: int
) -> None:
    print_table(("name", "reason"), [("a", "x" * length), ("b", ""), ("long", "x")])
    assert capsys.readouterr().out.splitlines() == [
        "name  reason", f"a     {'x' * length}", "b", "long  x",
    ]  # fmt: skip
