"""The page's files: all of them shipped, none from elsewhere, colours that can be read."""

import re
from importlib.resources import files
from pathlib import Path

import pytest

STATIC = Path(str(files("sits_dispatcher.dashboard").joinpath("static")))
CSS = (STATIC / "style.css").read_text()
LIGHT, DARK = (
    dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block))
    for block in re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)[:2]
)
READABLE = 4.5
"""Contrast of small text by WCAG 2, level AA."""


def luminance(colour: str) -> float:
    channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize(
    ("text", "background"),
    [("text", "card"), ("text", "bg"), ("text", "sunken"), ("text", "accent-weak"),
     ("text", "warn-weak"), ("muted", "card"), ("muted", "bg"), ("muted", "sunken"),
     ("accent", "card"), ("on-accent", "accent"), ("good", "card"), ("good", "good-weak"),
     ("warn", "card"), ("warn", "warn-weak"), ("bad", "card"), ("bad", "bad-weak")],
)  # fmt: skip
def test_text_can_be_read(theme: dict[str, str], text: str, background: str) -> None:
    assert contrast(theme[text], theme[background]) >= READABLE


def test_both_themes_have_the_same_colours() -> None:
    assert LIGHT.keys() == DARK.keys()


def test_every_file_that_is_named_is_there() -> None:
    named = set(re.findall(r'(?:src|href)="/static/([^"]+)"', (STATIC / "index.html").read_text()))
    scripts = set((STATIC / "js").glob("*.js"))
    imported = {
        f"js/{name}"
        for script in scripts
        for name in re.findall(r'from "\./([^"]+)"', script.read_text())
    }
    assert {name for name in named | imported if not (STATIC / name).is_file()} == set()
    assert {f"js/{script.name}" for script in scripts} <= named | imported


def test_the_page_has_nothing_inline_and_nothing_from_elsewhere() -> None:
    page = (STATIC / "index.html").read_text()
    assert re.findall(r"""(?:src|href)=["'](?!/)[^"']*""", page) == []
    assert re.findall(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", page) == []
    assert "url(" not in CSS
    assert "@import" not in CSS


def test_the_chart_library_comes_with_its_licence() -> None:
    script = (STATIC / "vendor/uPlot.iife.min.js").read_text()
    assert "uPlot (v1.6.32)" in script[:200]
    assert "MIT License" in (STATIC / "vendor/uPlot.LICENSE").read_text()
