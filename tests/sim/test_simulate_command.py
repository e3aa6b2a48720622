"""`sits simulate`: JSON, table, plot and exit status."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from sits_cli.commands import simulate
from sits_cli.main import app, main
from sits_sim.figures import Figure, Panel, Report, Series, at_least, at_most, higher, lower, plain
from sits_sim.plot import draw
from sits_sim.progress import Progress
from sits_sim.scenarios import NAMES, Size

PANELS = [
    Panel("latency", "load", "ms", [Series("a", [1.0, 2.0], [3.0, 40.0])], log_y=True),
    Panel("goodput", "load", "1/s", [Series("b", [1.0], [2.0]), Series("c", [1.0], [1.0])]),
]
GOOD = [lower("p99", 10.0, "ms", 187.0, 11.3), plain("requests", 500_000, "")]
MISSED = [*GOOD, at_least("utilisation", 0.9, "", 0.924)]


def sits(monkeypatch: pytest.MonkeyPatch, figures: list[Figure], *args: str) -> Result:
    def scenario(size: Size, progress: Progress) -> Report:
        progress.expect("runs", 1)
        progress.advance(1)
        return Report({"gpus": 1024, "seed": size.seed}, figures, PANELS)

    monkeypatch.setattr(simulate, "find", lambda name: scenario)
    return CliRunner().invoke(app, ["simulate", "thousand", *args])


def test_json_is_the_parameters_and_then_one_list_of_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = sits(monkeypatch, GOOD, "--json", "--seed", "7")
    assert result.exit_code == 0
    printed = json.loads(result.stdout)
    assert list(printed) == ["parameters", "figures"]
    assert printed["parameters"] == {"gpus": 1024, "seed": 7}
    assert printed["figures"][0] == {
        "figure": "p99", "value": 10.0, "unit": "ms", "reference": 187.0, "ratio": 18.7,
        "bar": ">= 11.3×", "holds": True,
    }  # fmt: skip
    assert printed["figures"][1]["holds"] is None


def test_a_missed_bar_is_shown_and_ends_with_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    result = sits(monkeypatch, MISSED)
    assert result.exit_code == 1
    line = next(line for line in result.stdout.splitlines() if line.startswith("utilisation"))
    assert line.split() == ["utilisation", "0.9", ">=", "0.924", "no"]


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_plot_is_drawn_when_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ending: str
) -> None:
    target = tmp_path / f"plot.{ending}"
    assert sits(monkeypatch, GOOD, "--plot", str(target)).exit_code == 0
    assert target.read_bytes()[:4] == {"png": b"\x89PNG", "svg": b"<?xm"}[ending]


def test_a_plot_in_another_format_is_refused_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def scenario(name: str) -> None:
        pytest.fail("ran")

    monkeypatch.setattr(simulate, "find", scenario)
    with pytest.raises(SystemExit):
        main(["simulate", "thousand", "--plot", "plot.pdf"])
    assert "a plot ends in .png or .svg, got 'plot.pdf'" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"ends in \.png or \.svg"):
        draw(PANELS, Path("plot.pdf"), "title")


def test_all_scenarios_can_be_named_and_others_cannot() -> None:
    result = CliRunner().invoke(app, ["simulate", "everything"])
    assert result.exit_code == 2
    assert all(name in result.output for name in NAMES)


@pytest.mark.parametrize(
    ("figure", "holds"),
    [
        (plain("x", 1.0, ""), None),
        (at_least("x", 0.924, "", 0.924), True),
        (at_least("x", 0.923, "", 0.924), False),
        (at_most("x", 0.06, "", 0.06), True),
        (at_most("x", 0.0601, "", 0.06), False),
        (lower("x", 10.0, "", 113.0, 11.3), True),
        (lower("x", 10.1, "", 113.0, 11.3), False),
        (higher("x", 81.0, "", 10.0, 8.1), True),
        (higher("x", 80.0, "", 10.0, 8.1), False),
        (lower("x", 0.0, "", 5.0, 2.0), True),
    ],
)
def test_a_bar_holds_when_it_is_reached(figure: Figure, holds: bool | None) -> None:
    assert figure.holds is holds
    assert figure.as_dict()["holds"] is holds
