"""README and documents: their examples run, their links lead somewhere, the figures they name are those of the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import rayingest as ri
from rayingest.api.readers import READERS
from rayingest.formats import get_format
from rayingest.transforms.decoders import decoder_for
from rayingest.transforms.images.pixels import MAX_PIXELS

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "infra/README.md")
]
DOCUMENTS += sorted((ROOT / "docs").glob("*.md"))


def blocks(language: str) -> list[str]:
    """README's code blocks in one language."""
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```$", (ROOT / "README.md").read_text())


def test_the_examples_run(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """All of README's Python, one block after the other, in an empty folder, with the configuration shown."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cluster, "shutdown", lambda: None)  # the tests' own cluster serves
    monkeypatch.setattr(cluster, "init", lambda num_cpus: None)
    (configuration,) = blocks("yaml")
    (tmp_path / "train.yaml").write_text(configuration)
    names: dict[str, Any] = {"__name__": "readme"}
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), names)
    assert names["images"].shape == (32, 3, 64, 64)
    assert str(names["images"].dtype) == "torch.float32"
    assert len(names["first"]["label"]) == 32
    shown = re.search(r"print\(trainer.*?# (\{.*?\})", (ROOT / "README.md").read_text())
    assert shown is not None
    assert shown.group(1) in capsys.readouterr().out


def test_the_commands_exist() -> None:
    """Files, targets and options that README's shell lines name are there."""
    lines = [line for block in blocks("bash") for line in block.splitlines()]
    targets = set(re.findall(r"(?m)^(\w+):", (ROOT / "Makefile").read_text()))
    assert {line.split()[1] for line in lines if line.startswith("make ")} <= targets
    job = (ROOT / "jobs/train_digits.py").read_text()
    for line in lines:
        for script in re.findall(r"\bjobs/\w+\.py|\binfra/\S+\.yaml", line):
            assert (ROOT / script).is_file(), line
        for option in re.findall(r"train_digits.py.*?(--[\w-]+)", line):
            assert f'"{option}"' in job, line
    assert "excludes" in yaml.safe_load((ROOT / "infra/runtime_env.yaml").read_text())


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    """Relative links name files or folders of the project."""
    targets = [
        target for target in re.findall(r"\]\(([^)]+)\)", path.read_text()) if "://" not in target
    ]
    assert [
        target for target in targets if not (path.parent / target.partition("#")[0]).exists()
    ] == []


def test_the_table_of_extensions_is_the_codes() -> None:
    """What docs/formats.md says of an extension is what decodes it."""
    text = (ROOT / "docs/formats.md").read_text()
    table = dict(
        re.findall(
            r"(?m)^\| ((?:`\w+` ?)+) \| (.+?) \|$", text.partition("## How fields are decoded")[2]
        )
    )
    said = {
        extension: meaning
        for names, meaning in table.items()
        for extension in re.findall(r"`(\w+)`", names)
    }
    for extension, meaning in said.items():
        decoder = decoder_for(extension)
        assert decoder is not None, extension
        if meaning.startswith("refused"):
            with pytest.raises(ri.ConfigError):
                decoder(b"")
    from rayingest.transforms import decoders

    assert said.keys() == decoders._DECODERS.keys() | set(decoders._PICKLED)
    assert f"{MAX_PIXELS:,}" in text


def test_the_table_of_formats_is_the_codes() -> None:
    """A row for every reader, with the ends of names by which a folder's files are recognised."""
    lines = (ROOT / "docs/formats.md").read_text().splitlines()
    rows = {
        line.split("`")[1].removeprefix("read_"): line
        for line in lines
        if line.startswith("| `read_")
    }
    assert rows.keys() == READERS.keys()
    for name, reader in READERS.items():
        said = re.findall(r"`(\S+)`", rows[name].split("|")[2])
        for suffix in filter(None, get_format(reader("x").format_name).suffixes):
            assert suffix.lstrip("/") in said or {
                f".{part}" for part in suffix[1:].split(".")
            } <= set(said), (
                name,
                suffix,
            )
