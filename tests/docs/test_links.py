"""Every link, path, dotted name and public name that a page gives exists."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import rayingest as ri
from tests.docs.pages import ROOT, anchors, name_of, pages, prose

PAGES = pages()

pytestmark = pytest.mark.source

_USERS_FILES = {"train.py", "my_transforms.py"}
"""Names of the reader's own files."""


def resolves(name: str) -> bool:
    """Whether a dotted name is a module or something in one."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    """A relative link names a file or folder of the project, and a heading of it."""
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        if not other.exists() or (anchor and anchor not in anchors(other)):
            wrong.append(target)
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_named_files_exist(page: Path) -> None:
    """A Python file in backticks exists beside the page, in the project or in the package."""
    wrong = []
    for span in re.findall(r"`([^`\n]+)`", prose(page)):
        for path in re.findall(r"(?<![\w./{}*-])[\w./]+\.py\b", span):
            places = (page.parent / path, ROOT / path, ROOT / "rayingest" / path)
            if path in _USERS_FILES:
                continue
            if not any(place.is_file() for place in places):
                wrong.append(path)
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_dotted_names_resolve(page: Path) -> None:
    """`rayingest.a.b` is a module or a name in one, `ri.name` is public; `python -m` names a
    module.
    """
    text = page.read_text()
    names = set(re.findall(r"(?<![\w./-])rayingest(?:\.[A-Za-z_]\w*)+", text))
    assert [name for name in sorted(names) if not resolves(name)] == []
    scripts = re.findall(r"python -m ((?:jobs|benchmarks)\.[a-z]\w+)", text)
    assert [name for name in scripts if not (ROOT / f"{name.replace('.', '/')}.py").is_file()] == []
    public = set(re.findall(r"\bri\.(\w+)(?![\w<]|\.\.\.)", text))
    assert [name for name in sorted(public) if not hasattr(ri, name)] == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=name_of)
def test_the_index_names_every_page(page: Path) -> None:
    """docs/README.md links every page of docs/."""
    index = (ROOT / "docs/README.md").read_text()
    path = str(page.relative_to(ROOT / "docs"))
    assert path == "README.md" or f"]({path})" in index
