"""No Python source of ours loads data in a way that can run code (pickle, eval and their kind)."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

import pytest

ROOT = Path(__file__).parent.parent
MODULES = {
    "pickle", "_pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "joblib",
    "multiprocessing.connection", "multiprocessing.managers",
}  # fmt: skip
"""The last two send pickles over sockets."""

BYTES_ONLY = {"multiprocessing.connection.Connection", "multiprocessing.connection.wait"}
"""Of a connection between processes, what may be named: where it is, nothing calls `recv`, which
unpickles; `recv_bytes` does not."""

CALLS = {
    "eval",
    "exec",
    "compile",
    "builtins.eval",
    "builtins.exec",
    "yaml.load",
    "yaml.unsafe_load",
}
CALLS |= {"yaml.full_load", "torch.hub.load"}


def sources() -> list[Path]:
    """Ours, not the tests, which craft such data to see it refused."""
    found = [
        p for top in ("libs", "services", "scripts", "bench") for p in (ROOT / top).rglob("*.py")
    ]
    return [path for path in found if ".venv" not in path.parts]


def unsafe(text: str) -> list[str]:
    """What in a source can run code that is hidden in data, with its line."""
    return [f"{node.lineno}: {what}" for node, what in _findings(ast.parse(text))]


def _findings(tree: ast.Module) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    nodes = list(ast.walk(tree))
    imported = [name for n in nodes if isinstance(n, ast.ImportFrom) for name in _names(n)]
    if BYTES_ONLY.intersection(imported):
        yield from ((node, "recv of a connection") for node in nodes if _is_recv(node))
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node, a.name) for a in node.names if _forbidden_module(a.name))
        elif isinstance(node, ast.ImportFrom):
            if not BYTES_ONLY.issuperset(_names(node)):
                names = [node.module or "", *_names(node)]
                yield from ((node, name) for name in names if name in MODULES or name in CALLS)
        elif isinstance(node, ast.Call):
            yield from ((node, what) for what in _forbidden_call(node))


def _names(node: ast.ImportFrom) -> list[str]:
    return [f"{node.module}.{alias.name}" for alias in node.names]


def _is_recv(node: ast.AST) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and node.attr == "recv"


def _forbidden_module(name: str) -> bool:
    return name in MODULES or name.partition(".")[0] in MODULES


def _forbidden_call(node: ast.Call) -> Iterator[str]:
    called = ast.unparse(node.func)
    options = {word.arg: ast.unparse(word.value) for word in node.keywords}
    if called in CALLS:
        yield called
    if called == "torch.load" and options.get("weights_only") != "True":
        yield "torch.load without weights_only=True"
    if options.get("allow_pickle", "False") != "False":
        yield f"{called} with allow_pickle"


def test_there_are_sources_to_search() -> None:
    assert len(sources()) > 50


def test_no_source_loads_data_that_can_run_code() -> None:
    found = {str(p.relative_to(ROOT)): unsafe(p.read_text()) for p in sources()}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "import numpy, _pickle as p",
        "from pickle import loads",
        "def f():\n    import marshal",
        "import shelve",
        "import joblib.hashing",
        "from multiprocessing import connection",
        "from multiprocessing.connection import Client",
        "from multiprocessing.connection import Connection\ndef f(c): return c.recv()",
        "import multiprocessing.managers",
        "yaml.load(text)",
        "from yaml import unsafe_load",
        "eval(text)",
        "exec(text)",
        "builtins.eval(text)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
        "numpy.lib.format.read_array(f, allow_pickle=flag)",
    ],
)
def test_every_unsafe_way_is_found(text: str) -> None:
    assert unsafe(text)


@pytest.mark.parametrize(
    "text",
    [
        "import json",
        "client.eval(script)",
        "model.eval()",
        "re.compile(pattern)",
        "yaml.safe_load(text)",
        "torch.load(path, weights_only=True)",
        "np.load(path, allow_pickle=False)",
        "import multiprocessing",
        "from multiprocessing.connection import Connection, wait\nwait([])[0].recv_bytes()",
    ],
)
def test_safe_ways_are_let_be(text: str) -> None:
    assert unsafe(text) == []
