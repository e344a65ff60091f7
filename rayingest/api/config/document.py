"""Read a YAML file as plain data that remembers its lines, and collect the mistakes in it.

Owns strict reading (a key given twice is a mistake) and how mistakes are reported: all at once,
each with its place. It does not know what the file means.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from rayingest.errors import ConfigError
from rayingest.options import describe_allowed
from rayingest.storage.redact import redact

Loc = tuple[str | int, ...]
"""Keys and list indices that lead from the top of the file to a value."""


@dataclass
class Mistakes:
    """The mistakes in a document so far. Places are relative to `at`, a place in it."""

    name: str
    lines: dict[Loc, int] = field(default_factory=dict)
    found: list[tuple[Loc, str]] = field(default_factory=list)
    at: Loc = ()

    def under(self, loc: Loc) -> Mistakes:
        """Return the same collection for the part of the document at this place."""
        return replace(self, at=(*self.at, *loc))

    def add(self, loc: Loc, message: str) -> None:
        """Add a mistake at this place."""
        self.found.append(((*self.at, *loc), message))

    def refuse(self) -> None:
        """Raise ConfigError with all mistakes, if there are any."""
        if not self.found:
            return
        lines = [
            f"{self._place(loc)}: {message}" for loc, message in sorted(self.found, key=self._order)
        ]
        if len(lines) == 1:
            raise ConfigError(lines[0])
        raise ConfigError("\n  ".join([f"{self.name} has {len(lines)} mistakes:", *lines]))

    def _order(self, item: tuple[Loc, str]) -> int:
        return self._line(item[0]) or 0

    def _line(self, loc: Loc) -> int | None:
        """Return the line of the value, or of the nearest one around it that is in the file."""
        while loc and loc not in self.lines:
            loc = loc[:-1]
        return self.lines.get(loc)

    def _place(self, loc: Loc) -> str:
        line = self._line(loc)
        start = self.name if line is None else f"{self.name}:{line}"
        path = "".join(
            f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc
        ).removeprefix(".")
        return f"{start}: {path}" if path else start


@dataclass(frozen=True)
class Document:
    """The mapping in a file, and the collection of its mistakes."""

    data: dict[str, Any]
    mistakes: Mistakes


def read_document(path: Path) -> Document:
    """Return the mapping in a YAML file.

    Raises ConfigError if the file cannot be read, is not YAML, or holds something else.
    """
    shown = redact(str(path))
    try:
        text = path.read_text(encoding="utf-8")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        mistakes = Mistakes(shown)
        if node is not None:
            _walk(node, (), mistakes, set())
        data = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read {shown}: {getattr(error, 'strerror', None) or error}"
        ) from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{shown} is not YAML: {yaml_problem(error)}") from None
    if not isinstance(data, dict):
        raise ConfigError(
            f"{shown} must be a mapping of sections (read, batch, ...), not {type(data).__name__}"
        )
    return Document(data, mistakes)


def yaml_problem(error: yaml.YAMLError) -> str:
    """Return the problem and its place, without the line itself, which may hold credentials."""
    mark = getattr(error, "problem_mark", None)
    problem = (
        getattr(error, "problem", None) or getattr(error, "reason", None) or type(error).__name__
    )
    return f"{problem}, line {mark.line + 1}, column {mark.column + 1}" if mark else str(problem)


def unknown_key(name: str, allowed: Iterable[str]) -> str:
    """Return the error for a key that does not exist."""
    return f"there is no such key; {describe_allowed(name, allowed)}"


def _walk(node: yaml.Node, loc: Loc, mistakes: Mistakes, walked: set[int]) -> None:
    mistakes.lines.setdefault(loc, node.start_mark.line + 1)
    if id(node) in walked:  # an alias; it may even stand inside of what it repeats
        return
    walked.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            _walk(item, (*loc, number), mistakes, walked)
    elif isinstance(node, yaml.MappingNode):
        seen: set[Loc] = set()
        for key, value in node.value:
            inner = (*loc, str(key.value))
            if inner in seen:
                mistakes.add(
                    inner, f"the key is given twice, again in line {key.start_mark.line + 1}"
                )
            seen.add(inner)
            mistakes.lines.setdefault(inner, key.start_mark.line + 1)
            _walk(value, inner, mistakes, walked)
