"""Draws a report's panels into a PNG or SVG file."""

from collections.abc import Sequence
from pathlib import Path

from sits_sim.figures import Panel

FORMATS = (".png", ".svg")


def draw(panels: Sequence[Panel], path: Path, title: str) -> None:
    """Raises `ValueError` when the name ends in neither .png nor .svg."""
    if path.suffix not in FORMATS:
        raise ValueError(f"a plot ends in .png or .svg, got '{path.name}'")
    # Half a second to import: only who asks for a plot waits for it.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4 * len(panels), 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    for position, panel in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), position + 1)
        axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
        axes.grid(alpha=0.3)
        if panel.log_y:
            axes.set_yscale("log")
        for series in panel.series:
            axes.plot(series.x, series.y, marker="o", markersize=3, label=series.label)
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=144)
