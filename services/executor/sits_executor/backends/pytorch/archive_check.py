"""Looks through an exported program before PyTorch reads it, and refuses what could run code.

`torch.export.load` unpickles sample inputs that do not load as plain weights, objects and
weights that say so, and evaluates the expressions of sizes and guards as Python; operators are
looked up by dotted names. So only archives pass that need none of it: tensors in raw form,
expressions of numbers, sizes and comparisons, and operators of PyTorch's own libraries.
Weakness: an archive that needs more (custom operators, script objects, compiled kernels) is
refused although it may be harmless.
"""

import ast
import io
import json
import re
import zipfile
from collections.abc import Iterator
from typing import Final

import torch

from sits_executor.backends.base import LoadError

_MEMBERS: Final = re.compile(
    r"models/[\w.-]+\.json"
    r"|data/weights/(weight_\d+|[\w.-]+_weights_config\.json)"
    r"|data/constants/(tensor_\d+|[\w.-]+_constants_config\.json)"
    r"|data/sample_inputs/[\w.-]+\.pt"
    r"|archive_format|archive_version|byteorder|version|\.data/(version|serialization_id)"
)
_TARGETS: Final = re.compile(
    r"torch\.ops\.(aten|prims|prim)\.\w+(\.\w+)?"
    r"|_operator\.(add|sub|mul|floordiv|truediv|mod|neg|pos|eq|ne|lt|le|gt|ge|getitem|and_|or_|not_)"
    r"|math\.(ceil|floor|trunc|sqrt)"
    r"|torch\.sym_(int|float|not|max|min|ite)"
)
_CALLS: Final = frozenset(
    {
        "Symbol", "Integer", "Rational", "Max", "Min", "Mod", "PythonMod", "FloorDiv", "CleanDiv",
        "Eq", "Ne", "Lt", "Le", "Gt", "Ge", "And", "Or", "Not", "Piecewise", "ExprCondPair",
        "Add", "Mul", "Pow", "CeilToInt", "FloorToInt", "IntTrueDiv", "ToFloat",
    }
)  # fmt: skip
_ATTRIBUTES: Final = frozenset({"size", "shape"})
_NODES: Final = (
    ast.Expression, ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Call, ast.Constant,
    ast.Name, ast.Load, ast.Subscript, ast.Attribute, ast.keyword, ast.Tuple,
    ast.boolop, ast.operator, ast.unaryop, ast.cmpop,
)  # fmt: skip
_TEXT_KEYS: Final = frozenset({"expr_str", "guards_code"})


def refuse_code(data: bytes) -> None:
    """Raises `LoadError` that names what is in the way."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for info in archive.infolist():
                _member(archive, info.filename)
    except (zipfile.BadZipFile, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise LoadError(f"the exported program cannot be read: {error}") from None


def harmless(text: str) -> bool:
    """Whether an expression only computes with numbers, sizes and comparisons."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError):
        return False
    return all(_harmless_node(node) for node in ast.walk(tree))


def _harmless_node(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) or (
            isinstance(node.func, ast.Name) and node.func.id in _CALLS
        )
    if isinstance(node, ast.Attribute):
        return node.attr in _ATTRIBUTES
    return isinstance(node, _NODES)


def _member(archive: zipfile.ZipFile, path: str) -> None:
    """`path` begins with the archive's own name."""
    name = path.partition("/")[2]
    if not _MEMBERS.fullmatch(name):
        raise LoadError(f"the exported program holds '{name}', which is not opened here")
    if name.endswith(".pt"):
        _plain_tensors(name, archive.read(path))
    elif name.endswith(".json"):
        for problem in _problems(json.loads(archive.read(path)), ""):
            raise LoadError(f"'{name}' of the exported program {problem}")


def _plain_tensors(name: str, data: bytes) -> None:
    """Else PyTorch would read it again, and then unpickle."""
    try:
        if data:
            torch.load(io.BytesIO(data), weights_only=True)
    except Exception:  # noqa: BLE001 - whatever it is, it is not plain
        raise LoadError(f"'{name}' of the exported program is more than plain tensors") from None


def _problems(value: object, key: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _problems(inner, str(name))
    elif isinstance(value, list):
        for inner in value:
            yield from _problems(inner, key)
    elif key == "use_pickle" and value is not False:
        yield "has pickled entries"
    elif isinstance(value, str):
        if key in _TEXT_KEYS and not harmless(value):
            yield f"has an expression that is more than sizes: {value[:100]}"
        if key == "target" and not _TARGETS.fullmatch(value):
            yield f"calls {value[:100]}, which is not one of PyTorch's operators"
        if "__enum__" in value:
            yield "names a Python class"
