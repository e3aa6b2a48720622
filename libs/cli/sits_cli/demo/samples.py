"""Files whose kind is known: the project's own, the installation's, and some made here."""

import gzip
import io
import sqlite3
import struct
import sys
import sysconfig
import tarfile
import wave
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

KINDS = {
    ".c": "c", ".css": "css", ".h": "c", ".html": "html", ".json": "json", ".md": "markdown",
    ".proto": "proto", ".py": "python", ".pyc": "pythonbytecode", ".rs": "rust", ".sh": "shell",
    ".so": "elf", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml",
    "Dockerfile": "dockerfile", "Makefile": "makefile", "LICENSE": "txt",
}  # fmt: skip
"""Content type by suffix, or by name where there is none."""

SKIPPED = {"__pycache__", "node_modules", "models", "build", "dist", "target"}
"""And whatever begins with a dot: environments, caches, what benchmarks leave."""
PER_KIND = 6
MIN_BYTES, MAX_BYTES = 400, 64 << 20
"""Shorter files say too little about themselves."""
FROM_INSTALLATION = ("*.so", "*.css", "*.h", "*.json", "*.pyc")
"""Kinds that a suffix settles: packages' .html files are often templates for something else."""


@dataclass(frozen=True, slots=True)
class Sample:
    name: str
    kind: str
    data: bytes


def all_samples(root: Path) -> list[Sample]:
    """Some of the project's files of each kind, then others."""
    return [*project_files(root), *installed_files(), *made_files()]


def project_files(root: Path) -> Iterator[Sample]:
    found = [path for path in sorted(root.rglob("*")) if _usable(path.relative_to(root), path)]
    by_kind = sorted(found, key=_kind)
    for kind, paths in groupby(by_kind, _kind):
        for path in _spread(list(paths), PER_KIND):
            yield Sample(str(path.relative_to(root)), kind, path.read_bytes())


def installed_files() -> Iterator[Sample]:
    """The interpreter, and the first file of each of some kinds among the packages."""
    yield Sample("python executable", "elf", Path(sys.executable).read_bytes())
    packages = Path(sysconfig.get_path("purelib"))
    for pattern in FROM_INSTALLATION:
        for path in sorted(packages.glob(f"*/**/{pattern}")):
            if MIN_BYTES <= path.stat().st_size <= MAX_BYTES:
                yield Sample(path.name, KINDS[path.suffix], path.read_bytes())
                break


def made_files() -> Iterator[Sample]:
    text = b"The quick brown fox jumps over the lazy dog, again and again.\n" * 40
    yield Sample("made.zip", "zip", _zip(text))
    yield Sample("made.tar", "tar", _tar(text))
    yield Sample("made.txt.gz", "gzip", gzip.compress(text, mtime=0))
    yield Sample("made.png", "png", _png(64))
    yield Sample("made.wav", "wav", _wav())
    yield Sample("made.sqlite", "sqlite", _sqlite())


def _usable(relative: Path, path: Path) -> bool:
    return (
        not SKIPPED & set(relative.parts)
        and not any(part.startswith(".") for part in relative.parts)
        and "_pb2" not in path.name
        and _kind(path) != ""
        and path.is_file()
        and MIN_BYTES <= path.stat().st_size <= MAX_BYTES
    )


def _kind(path: Path) -> str:
    return KINDS.get(path.suffix or path.name, "")


def _spread(paths: list[Path], count: int) -> list[Path]:
    """`count` of them at equal distances."""
    return paths[:: max(1, -(-len(paths) // count))]


def _zip(text: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo("fox.txt"), text, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _tar(text: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        entry = tarfile.TarInfo("fox.txt")
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text))
    return buffer.getvalue()


def _png(width: int) -> bytes:
    """A grey gradient, built by the book."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        check = zlib.crc32(kind + body)
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", width, width, 8, 0, 0, 0, 0)
    row = b"\0" + bytes(4 * x % 256 for x in range(width))
    pixels = zlib.compress(row * width)
    chunks = ((b"IHDR", header), (b"IDAT", pixels), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(kind, body) for kind, body in chunks)


def _wav() -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", ""))
        sound.writeframes(b"".join(struct.pack("<h", 400 * (n % 50)) for n in range(2000)))
    return buffer.getvalue()


def _sqlite() -> bytes:
    with sqlite3.connect(":memory:") as database:
        database.execute("CREATE TABLE foxes (id INTEGER PRIMARY KEY, colour TEXT)")
        database.executemany("INSERT INTO foxes (colour) VALUES (?)", [("brown",)] * 200)
    content = database.serialize()
    database.close()
    return content
