"""Measured links: the file that `sits probe` writes, and what of it holds for a topology.

A measurement replaces the nominal bandwidth of a pair while the path is the one that was
measured: same two devices, same kind, as many NVLinks, nothing degraded. All other pairs keep
their nominal figures, so that a probe of yesterday never hides a link that was lost today.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import structlog

from sits_scheduling.links import Knowledge, LinkKind
from sits_topology.model import Link, Topology, TopologyError
from sits_topology.sources import Source

log = structlog.get_logger()

FORMAT: Final = "sits-probe-1"
MAX_FILE_BYTES: Final = 16 << 20
Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class MeasuredLink:
    """What one copy after the other over this pair reached, in one direction."""

    source: str
    target: str
    kind: str
    lanes: int
    """NVLinks that were up; 0 = not counted."""
    gbps: float
    latency_us: float
    """Of the smallest copy."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The links of a probe and when it ran, in seconds of the wall clock."""

    at_unix_s: float
    links: Mapping[Pair, MeasuredLink]

    def applied(self, topology: Topology) -> Topology:
        """With the measured figures where they hold."""
        return replace(topology, links=tuple(self._link(link) for link in topology.links))

    def _link(self, link: Link) -> Link:
        found = self.links.get((link.source, link.target))
        if found is None or not _same_path(found, link):
            return link
        return replace(
            link, bandwidth_gbps=found.gbps, latency_us=found.latency_us or None, measured=True
        )


def _same_path(found: MeasuredLink, link: Link) -> bool:
    known = link.knowledge is not Knowledge.DEGRADED
    return known and found.kind == link.kind.name and found.lanes == (link.lanes or 0)


def read_measured(path: Path) -> Measured:
    """Raises `TopologyError` that says what was expected and what is there."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise TopologyError(f"larger than {MAX_FILE_BYTES} bytes, which no probe's file is")
        record = json.loads(path.read_text())
    except OSError as error:
        raise TopologyError(f"expected a file of `sits probe`: {error.strerror}") from None
    except ValueError as error:
        raise TopologyError(f"expected JSON of `sits probe`: {error}") from None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise TopologyError(f'expected a file of `sits probe`, with "format": "{FORMAT}"')
    try:
        links = [_read_link(row) for row in record["links"]]
        at_unix_s = float(record["at_unix_s"])
    except (KeyError, TypeError, ValueError) as error:
        raise TopologyError(f"not whole: {type(error).__name__} {error}") from None
    return Measured(at_unix_s, {(link.source, link.target): link for link in links})


def _read_link(row: Mapping[str, object]) -> MeasuredLink:
    gbps, latency_us = float(str(row["gbps"])), float(str(row["latency_us"]))
    if not (0 < gbps < math.inf and 0 <= latency_us < math.inf):
        raise ValueError(f"{gbps} GB/s after {latency_us} µs is no link's speed")
    return MeasuredLink(
        source=str(row["source"]),
        target=str(row["target"]),
        kind=LinkKind[str(row["kind"])].name,
        lanes=int(str(row["lanes"])),
        gbps=gbps,
        latency_us=latency_us,
    )


class MeasuredSource:
    """A source whose links carry what was measured, while the file is there and young enough.

    The file is looked at before every publication and read when it is another one. Gone,
    broken or too old means nominal figures again, said once for each cause; what serves never
    stops for it. `now_s` is the wall clock, as in the file.
    """

    def __init__(
        self, inner: Source, path: Path, max_age_s: float, now_s: Callable[[], float]
    ) -> None:
        self._inner, self._path = inner, path
        self._max_age_s, self._now_s = max_age_s, now_s
        self._stamp: tuple[int, int] | None = None
        self._measured: Measured | None = None
        self._said = ""

    @property
    def age_s(self) -> float:
        """Of the file in use; infinite without one."""
        measured = self._measured
        return math.inf if measured is None else max(0.0, self._now_s() - measured.at_unix_s)

    def read(self) -> Topology:
        topology = self._inner.read()
        self._look()
        if self._measured is None:
            return topology
        if self.age_s > self._max_age_s:
            self._say(f"measured more than {self._max_age_s:.0f} s ago")
            return topology
        return self._measured.applied(topology)

    def _look(self) -> None:
        try:
            status = self._path.stat()
        except OSError as error:
            self._stamp = self._measured = None
            self._say(error.strerror or "cannot be read")
            return
        stamp = (status.st_mtime_ns, status.st_ino)
        if stamp == self._stamp:
            return
        self._stamp, self._measured = stamp, None
        try:
            self._measured = read_measured(self._path)
            self._said = ""
        except TopologyError as error:
            self._say(str(error))

    def _say(self, cause: str) -> None:
        if cause != self._said:
            self._said = cause
            log.warning("topology.nominal_links", file=str(self._path), cause=cause)

    def __repr__(self) -> str:
        links = 0 if self._measured is None else len(self._measured.links)
        return f"<MeasuredSource {links} links of {self._path}>"
