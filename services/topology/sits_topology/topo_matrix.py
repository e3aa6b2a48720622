"""The matrix in the text of `nvidia-smi topo -m`, as people paste it: read, or refused.

Separators are not trusted, for copies lose them (`PXBNODE`), mix them and double them. A row
is its name, then exactly one cell for each name of the header, then what is left is
affinity. So a row that was cut is noticed, and one with cells run together is not harmed.

Refused: no header, a row for an unknown GPU, no row for a known one, a row with too few
cells, a cell that nvidia-smi never prints, X anywhere but on the diagonal, two halves of the
matrix that contradict each other. NIC rows may be left out, as posters do.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sits_topology.model import MAX_DEVICES, TopologyError

CPU: Final = "CPU Affinity"
NUMA: Final = "NUMA Affinity"
GPU_NUMA: Final = "GPU NUMA ID"

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_CELL = re.compile(r"\s*(X|SYS|SOC|NODE|PHB|PXB|PIX|NV\d+)")
_COLUMN = re.compile(
    r"\s*(CPU Affinity|NUMA Affinity|GPU NUMA ID"
    r"|GPU\d+|NIC\d+|mlx\d+_(?:bond_)?\d+|[A-Za-z][\w.-]*)"
)
_GPU = re.compile(r"GPU\d+")
_NIC_LEGEND = re.compile(r"\s*(NIC\d+):\s*(\S+)")
_NVLINK_LEGEND = re.compile(r"\s*NV#\s*=")
_AFFINITY_NAMES = {CPU: CPU, NUMA: NUMA, GPU_NUMA: GPU_NUMA, "NUMA": NUMA}

MAX_NVLINKS = 36


@dataclass(frozen=True, slots=True)
class Row:
    cells: tuple[str, ...]
    rest: str
    """The affinity columns, as they stand."""


@dataclass(frozen=True, slots=True)
class Matrix:
    names: tuple[str, ...]
    affinity: tuple[str, ...]
    """Titles of the columns behind the matrix."""
    rows: dict[str, Row]
    nic_names: dict[str, str]
    shows_nvlink: bool
    """Whether "no NV cell" means "no NVLink". `topo -mp` prints the same without NVLink, so
    this needs an NV cell or the NV# line of the legend."""

    @property
    def gpus(self) -> list[str]:
        return [name for name in self.names if is_gpu(name)]

    def cell(self, one: str, other: str) -> str | None:
        """From either half; None when the rows of both were left out."""
        for row, column in ((one, other), (other, one)):
            if row in self.rows:
                return self.rows[row].cells[self.names.index(column)]
        return None


def is_gpu(name: str) -> bool:
    return _GPU.fullmatch(name) is not None


def read_matrix(text: str) -> Matrix:
    """The first matrix of `text`; what comes before and after it does no harm."""
    lines = [_clean(line) for line in text.splitlines()]
    start, names, affinity = _find_header(lines)
    rows = dict(_rows(lines[start + 1 :], names))
    shown = any(cell.startswith("NV") for row in rows.values() for cell in row.cells)
    matrix = Matrix(
        names,
        affinity,
        rows,
        dict(_matches(_NIC_LEGEND, lines)),
        shown or any(_NVLINK_LEGEND.match(line) for line in lines),
    )
    _check(matrix)
    return matrix


def _clean(line: str) -> str:
    """Without terminal colours, comment signs and indentation."""
    return _ANSI.sub("", line).strip(" \t\r").removeprefix("#").strip(" ").strip("\r")


def _matches(pattern: re.Pattern[str], lines: list[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        if match := pattern.match(line):
            yield match[1], match[2]


def _find_header(lines: list[str]) -> tuple[int, tuple[str, ...], tuple[str, ...]]:
    for number, line in enumerate(lines):
        if _is_header(line):
            titles = _COLUMN.findall(line)
            names = tuple(title for title in titles if title not in _AFFINITY_NAMES)
            affinity = (_AFFINITY_NAMES[title] for title in titles if title in _AFFINITY_NAMES)
            return number, names, tuple(affinity)
    if any(_GPU.match(line) for line in lines):
        raise TopologyError("no header line (GPU0 GPU1 ...) above the rows: the paste was cut")
    raise TopologyError("not the output of nvidia-smi topo -m: it has no line starting with GPU0")


def _is_header(line: str) -> bool:
    """A row goes on with a cell, a header with a name or nothing."""
    match = _GPU.match(line.lstrip())
    return match is not None and _CELL.match(line.lstrip(), match.end()) is None


def _rows(lines: list[str], names: tuple[str, ...]) -> Iterator[tuple[str, Row]]:
    """Until a second header: `topo -p2p` and others print one more matrix."""
    for line in lines:
        name = re.match(r"\S*", line.lstrip())
        if _is_header(line):
            return
        if name and name[0] in names:
            yield name[0], _row(name[0], line.lstrip()[name.end() :], names)
        elif name and is_gpu(name[0]):
            raise TopologyError(f"row {name[0]} is not in the header: the header was cut")


def _row(name: str, text: str, names: tuple[str, ...]) -> Row:
    cells: list[str] = []
    position = 0
    for column in names:
        match = _CELL.match(text, position)
        if match is None:
            raise TopologyError(_bad_cell(name, column, text[position:], len(cells), len(names)))
        cells.append("SYS" if match[1] == "SOC" else match[1])
        position = match.end()
    return Row(tuple(cells), text[position:])


def _bad_cell(name: str, column: str, rest: str, got: int, wanted: int) -> str:
    words = rest.split()
    if len(words) < 2:
        end = f", then {words[0][:20]!r}" if words else ""
        return f"row {name} ends after {got} of {wanted} cells{end}: the paste was cut"
    return (
        f"row {name}, column {column}: expected X, SYS, NODE, PHB, PXB, PIX or NV<number>, "
        f"got {words[0][:20]!r}"
    )


def _check(matrix: Matrix) -> None:
    if len(matrix.names) > MAX_DEVICES:
        raise TopologyError(f"{len(matrix.names)} devices: no host has more than {MAX_DEVICES}")
    if len(set(matrix.names)) < len(matrix.names):
        raise TopologyError("the header names a device twice")
    absent = [gpu for gpu in matrix.gpus if gpu not in matrix.rows]
    if absent:
        raise TopologyError(
            f"the header names {len(matrix.gpus)} GPUs but there is no row for "
            f"{', '.join(absent)}: the paste was cut"
        )
    for name, row in matrix.rows.items():
        for column, cell in zip(matrix.names, row.cells, strict=True):
            _check_cell(matrix, name, column, cell)


def _check_cell(matrix: Matrix, name: str, column: str, cell: str) -> None:
    if (cell == "X") != (name == column):
        raise TopologyError(f"row {name}, column {column} reads {cell}: X belongs on the diagonal")
    if cell.startswith("NV") and not 1 <= int(cell[2:]) <= MAX_NVLINKS:
        raise TopologyError(f"row {name}, column {column} reads {cell}: no GPU has that many")
    other = matrix.cell(column, name)
    if other != cell:
        raise TopologyError(f"{name} to {column} reads {cell}, {column} to {name} reads {other}")
