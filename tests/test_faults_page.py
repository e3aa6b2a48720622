"""docs/faults.md claims tests for each fault: they exist, and each fault stands there once."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "faults.md"
ROW = re.compile(r"^\| (?P<id>[^|]*) \|.*\| (?P<shown_by>[^|]*) \|$", re.MULTILINE)
FILE = re.compile(r"`((?:\w+/)*test_\w+\.py)`")


def claims() -> Iterator[tuple[str, str]]:
    """Fault and file. A name is looked for at the top, beside the file before
    it, and in the top folder of that."""
    for row in ROW.finditer(PAGE.read_text()):
        before = Path()
        for name in FILE.findall(row["shown_by"]):
            tries = [Path(name), before / name, Path(*before.parts[:1]) / name]
            found = next((path for path in tries if (TESTS / path).exists()), tries[0])
            before = found.parent
            yield row["id"], str(found)


def test_every_fault_stands_there_once() -> None:
    ids = Counter(re.findall(r"^\| ([A-Z]{3}-\d\d) \|", PAGE.read_text(), re.MULTILINE))
    assert len(ids) > 30
    assert ids.most_common(1)[0][1] == 1
    assert set(ids) <= {fault for fault, _ in claims()}, "a fault names no test"


@pytest.mark.parametrize("file", sorted({file for _, file in claims()}))
def test_the_tests_that_it_names_exist(file: str) -> None:
    assert "def test_" in (TESTS / file).read_text()
