"""Expressions on a sample's fields, as text: `width >= 256 and label in (3, 5)`.

Owns the language, a small part of Python's: names of fields, constants, comparisons, `in`, `is
None`, `and`, `or`, `not`, arithmetic, `len`, and items (`json["width"]`). Nothing else can be said
in it, so it runs no code of anybody's.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any

from rayingest.errors import ConfigError

_NODES = (
    *(
        ast.Expression,
        ast.BoolOp,
        ast.And,
        ast.Or,
        ast.UnaryOp,
        ast.Not,
        ast.USub,
        ast.BinOp,
        ast.Compare,
        ast.Call,
    ),
    *(
        ast.Add,
        ast.Sub,
        ast.Mult,
        ast.Div,
        ast.FloorDiv,
        ast.Mod,
        ast.Constant,
        ast.Name,
        ast.Load,
        ast.Subscript,
    ),
    *(
        ast.Tuple,
        ast.List,
        ast.Eq,
        ast.NotEq,
        ast.Lt,
        ast.LtE,
        ast.Gt,
        ast.GtE,
        ast.In,
        ast.NotIn,
        ast.Is,
        ast.IsNot,
    ),
)


@dataclass(frozen=True)
class Expression:
    """Called with a sample it gives what the text says of it. ConfigError for what is not of the
    language.
    """

    text: str

    def __post_init__(self) -> None:
        _compiled(self.text)

    @property
    def names(self) -> tuple[str, ...]:
        """The fields it asks for, in order."""
        return _compiled(self.text)[1]

    def __call__(self, sample: Mapping[str, Any]) -> Any:
        return eval(_compiled(self.text)[0], {"__builtins__": {}, "len": len}, dict(sample))  # noqa: S307 - see above


@lru_cache(maxsize=64)
def _compiled(text: str) -> tuple[CodeType, tuple[str, ...]]:
    try:
        tree = ast.parse(text.strip(), "<where>", "eval")
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"where({text!r}): {error}") from None
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for call in calls:
        if (
            not isinstance(call.func, ast.Name)
            or call.func.id != "len"
            or len(call.args) != 1
            or call.keywords
        ):
            raise ConfigError(
                f"where({text!r}): {ast.unparse(call)!r} is no part of the language; use filter(fn)"
            )
    for node in ast.walk(tree):
        if not isinstance(node, _NODES):
            raise ConfigError(
                f"where({text!r}): {_shown(node)!r} is no part of the language; use filter(fn)"
            )
    functions = {id(call.func) for call in calls}
    fields = [
        node for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in functions
    ]
    fields.sort(key=lambda node: (node.lineno, node.col_offset))
    names = tuple(dict.fromkeys(node.id for node in fields))
    if not names:
        raise ConfigError(f"where({text!r}) asks for no field")
    return compile(tree, "<where>", "eval"), names


def _shown(node: ast.AST) -> str:
    blank = ast.Name("_")  # an operator is text only with what it stands between, or before
    if isinstance(node, ast.operator):
        return ast.unparse(ast.BinOp(blank, node, blank)).strip("_ ")
    if isinstance(node, ast.unaryop):
        return ast.unparse(ast.UnaryOp(node, blank)).strip("_")
    return ast.unparse(node)
