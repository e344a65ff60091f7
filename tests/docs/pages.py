"""Read the project's Markdown: pages, code blocks, headings, links.

A fence's first word is its language, a second word says what the tests do with the block:

- none: a `python` block runs, a `yaml` block is a file that the page's examples read, the files and
  options of a `bash` block exist;
- `run` (of `bash`): its `rayingest` commands run too;
- `fragment`: the block is part of a program that the page does not show, and must only parse.

A page with examples names what they need in a comment such as `<!-- examples: shards, ray -->`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FOLDERS = ("docs", "rayingest", "tests", "jobs", "benchmarks", "infra", "configs")
_FENCE = re.compile(r"(?ms)^```(\w+) ?(\w*)\n(.*?)^```$")


@dataclass(frozen=True)
class Block:
    """A code block: its language, its second word, its text, and the line of the page before it."""

    language: str
    word: str
    text: str
    line: int


def pages() -> list[Path]:
    """Every page of the project, sorted."""
    found = list(ROOT.glob("*.md"))
    for folder in _FOLDERS:
        found += (ROOT / folder).rglob("*.md")
    return sorted(found)


def name_of(page: Path) -> str:
    """A page's path below the project's root, for the names of tests."""
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[Block]:
    """The page's code blocks in one language, in order."""
    text = page.read_text()
    return [
        Block(match[1], match[2], match[3], text.count("\n", 0, match.start(3)))
        for match in _FENCE.finditer(text)
        if match[1] == language
    ]


def prose(page: Path) -> str:
    """The page without its code blocks."""
    return re.sub(r"(?ms)^```.*?^```$", "", page.read_text())


def needs(page: Path) -> set[str]:
    """What the page's examples need: `shards` of README's first example, a `ray` cluster."""
    match = re.search(r"<!-- examples: (.*?) -->", page.read_text())
    return set(match[1].split(", ")) if match else set()


def anchors(page: Path) -> set[str]:
    """The names by which links reach the page's headings."""
    headings = re.findall(r"(?m)^#+ (.+)$", re.sub(r"(?ms)^```.*?^```$", "", page.read_text()))
    words = (re.sub(r"[^\w\- ]", "", re.sub(r"\]\(.*?\)", "", text).lower()) for text in headings)
    return {text.replace(" ", "-") for text in words}
