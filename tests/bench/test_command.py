"""`sits bench` finds the scripts of bench/ and passes options on."""

import sys
from pathlib import Path

import pytest
from typer import BadParameter

from sits_cli.client import CliError
from sits_cli.commands import bench


def test_scripts_are_benchmarks_and_options_are_theirs(tmp_path: Path) -> None:
    (tmp_path / "one_two.py").write_text('"""Does it.\n\nMore."""\n')
    argv = bench.command(tmp_path, "one-two", ["--json", "-n", "3"])
    assert argv == [sys.executable, str(tmp_path / "one_two.py"), "--json", "-n", "3"]


def test_an_unknown_one_is_refused_with_those_there_are(tmp_path: Path) -> None:
    (tmp_path / "a.py").touch()
    with pytest.raises(BadParameter, match="there are a"):
        bench.command(tmp_path, "b", [])


def test_without_a_checkout_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(CliError, match="checkout"):
        bench.benchmarks(tmp_path / "nothing")


def test_all_have_a_line_about_them(capsys: pytest.CaptureFixture[str]) -> None:
    bench.listing(bench.BENCH)
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split(maxsplit=1) for line in lines[1 : lines.index("")]]
    assert {"mesh", "ladder", "load", "soak"} <= {row[0] for row in rows}
    assert all(len(row) == 2 for row in rows)
