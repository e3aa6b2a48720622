"""Running on the CPUs of one NUMA node, where memory that is first touched comes to lie."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

Cpus = Mapping[str, Sequence[int]]
"""CPUs of each NUMA node by its name."""


@contextmanager
def on_cpus(cpus: Sequence[int]) -> Iterator[None]:
    """This thread runs there meanwhile; anywhere it may when it may use none of them."""
    before = os.sched_getaffinity(0)
    wanted = before & set(cpus)
    if wanted:
        os.sched_setaffinity(0, wanted)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
