"""Evaluate expressions on a sample's fields, given as text: `width >= 256 and label in (3, 5)`.

Owns the language, a small part of Python: names of fields, dotted paths (`meta.score`), constants,
comparisons, `in`, `is None`, `and`, `or`, `not`, arithmetic, `len`, and items (`json["width"]`). It
has nothing else, so an expression cannot run other code.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any

from rayingest.errors import ConfigError

_VALUES = (ast.Constant, ast.Name, ast.Load, ast.Subscript, ast.Tuple, ast.List, ast.Call)
_LOGIC = (ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not)
_ARITHMETIC = (ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.USub)
_COMPARISON = (ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_MEMBERSHIP = (ast.In, ast.NotIn, ast.Is, ast.IsNot)
_NODES = (ast.Expression, *_VALUES, *_LOGIC, *_ARITHMETIC, *_COMPARISON, *_MEMBERSHIP)


@dataclass(frozen=True)
class Expression:
    """An expression: call it with a sample for its value. ConfigError if not in the language."""

    text: str

    def __post_init__(self) -> None:
        _compile(self.text)

    @property
    def names(self) -> tuple[str, ...]:
        """The fields that it names, in order."""
        return _compile(self.text)[1]

    def __call__(self, sample: Mapping[str, Any]) -> Any:
        code, _ = _compile(self.text)
        # Safe: `_compile` refuses every node that is not in the language.
        return eval(code, {"__builtins__": {}, "len": len}, dict(sample))  # noqa: S307


_SQL = (
    (r"\bIS\s+NOT\s+NULL\b", "write 'x is not None' for IS NOT NULL"),
    (r"\bIS\s+NULL\b", "write 'x is None' for IS NULL"),
    (r"\bBETWEEN\b", "write '1 <= x <= 3' for BETWEEN 1 AND 3"),
    (r"\bI?LIKE\b", "use .filter(fn) for LIKE, as in filter(lambda s: s['x'].startswith('a'))"),
    (r"\b(AND|OR|NOT|IN)\b", "write and, or, not, in as Python does, in lower case"),
    (r"\b(SELECT|FROM|WHERE|ORDER|GROUP|LIMIT)\b", "write the condition alone, as in 'x > 3'"),
    (r"<>", "write != for <>"),
    (r"&&|\|\|", "write and for &&, or for ||"),
    (r"(?<![=<>!])=(?!=)", "write == for ="),
    (r"\bNULL\b", "write None for NULL"),
    (r"\b(TRUE|FALSE)\b", "write True or False"),
)
"""By pattern of SQL, the same in the language of `where`."""


def _advise(text: str) -> str:
    """Return how to write the text in the language of `where`; it may be SQL."""
    bare = re.sub(r"'[^']*'|\"[^\"]*\"", "''", text)
    found = [
        advice
        for pattern, advice in _SQL
        if re.search(pattern, bare) or re.search(pattern.lower(), bare)
    ]
    more = found or ['write a condition of Python, as in "x > 3 and label in (3, 5)"']
    return "; ".join(more)


@lru_cache(maxsize=64)
def _compile(text: str) -> tuple[CodeType, tuple[str, ...]]:
    try:
        tree = ast.parse(text.strip(), "<where>", "eval")
    except (SyntaxError, ValueError) as error:
        problem = getattr(error, "msg", None) or str(error)
        raise ConfigError(
            f"where({text!r}): it is no expression of Python ({problem}); {_advise(text)}"
        ) from None
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for call in calls:
        if (
            not isinstance(call.func, ast.Name)
            or call.func.id != "len"
            or len(call.args) != 1
            or call.keywords
        ):
            raise ConfigError(
                f"where({text!r}): {ast.unparse(call)!r} is not in its language; use filter(fn)"
            )
    tree = _Paths().visit(tree)
    for node in ast.walk(tree):
        if not isinstance(node, _NODES):
            raise ConfigError(
                f"where({text!r}): {_unparse(node)!r} is not in its language; use filter(fn)"
            )
    functions = {id(call.func) for call in calls}
    fields = [
        node for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in functions
    ]
    fields.sort(key=lambda node: (node.lineno, node.col_offset))
    names = tuple(dict.fromkeys(node.id for node in fields))
    if not names:
        raise ConfigError(f"where({text!r}) names no field")
    return compile(tree, "<where>", "eval"), names


class _Paths(ast.NodeTransformer):
    """Make a dotted path, as in `meta.score`, the name of one field."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        base = self.visit(node.value)
        if not isinstance(base, ast.Name) or node.attr.startswith("__"):
            return node
        return ast.copy_location(ast.Name(f"{base.id}.{node.attr}", ast.Load()), node)


def _unparse(node: ast.AST) -> str:
    blank = ast.Name("_")  # an operator is text only between or before operands
    if isinstance(node, ast.operator):
        return ast.unparse(ast.BinOp(blank, node, blank)).strip("_ ")
    if isinstance(node, ast.unaryop):
        return ast.unparse(ast.UnaryOp(node, blank)).strip("_")
    return ast.unparse(node)
