"""The pages use the words of the glossary."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, name_of, prose

GLOSSARY = ROOT / "docs/glossary.md"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "infra/README.md"]
PAGES += [page for page in sorted((ROOT / "docs").rglob("*.md")) if page != GLOSSARY]
_ORDINARY = {"cycle", "view"}
"""Avoided as names, but words of other subjects too: the cycle walking of a Feistel network."""


def avoided() -> set[str]:
    """The words of the first column of the glossary's last table."""
    table = GLOSSARY.read_text().partition("## Words that this project does not use")[2]
    cells = re.findall(r"(?m)^\| ([^|]+) \| [^|]+ \|$", table)[1:]
    return {word for cell in cells for word in cell.split(", ")} - _ORDINARY


def test_the_glossary_avoids_words() -> None:
    """The table is read as it is meant."""
    assert {"calendar", "stand-in", "decode path"} <= avoided()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_pages_avoid_what_the_glossary_avoids(page: Path) -> None:
    """Outside of code, no page has a word in the place of which the glossary has another."""
    text = " ".join(re.sub(r"`[^`]*`", "", prose(page)).split())
    found = [word for word in sorted(avoided()) if re.search(rf"(?i)\b{word}s?\b", text)]
    assert found == []
