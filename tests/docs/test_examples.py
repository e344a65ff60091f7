"""The examples of README and of the pages of docs/ run, and the commands that they name exist."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from typer.testing import CliRunner

from rayingest.tools.cli import app
from tests.docs.pages import ROOT, Block, blocks, name_of, needs, pages

README = ROOT / "README.md"
PAGES = [
    page
    for page in [README, *sorted((ROOT / "docs").rglob("*.md"))]
    if not page.name.startswith("add_")  # these have tests of their own
]
EXAMPLES = [page for page in PAGES if any(not block.word for block in blocks(page, "python"))]
EXAMPLES += [page for page in PAGES if page not in EXAMPLES and blocks(page, "yaml")]


def run(page: Path, block: Block, names: dict[str, Any]) -> None:
    """Run a block; errors name the page and its line."""
    exec(compile("\n" * block.line + block.text, name_of(page), "exec"), names)


def named_files(page: Path) -> dict[str, str]:
    """The YAML files of the page, by the name in their first line; `train.yaml` if none."""
    files = {}
    for block in blocks(page, "yaml"):
        if block.word != "fragment":
            match = re.match(r"# (\S+\.yaml)\n", block.text)
            files[match[1] if match else "train.yaml"] = block.text
    return files


@pytest.mark.parametrize("page", EXAMPLES, ids=name_of)
def test_the_examples_run(
    page: Path,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A page's Python and commands, in order, in an empty folder; comments give the output."""
    monkeypatch.chdir(tmp_path)
    if "ray" in needs(page):
        cluster = request.getfixturevalue("cluster")
        monkeypatch.setattr(cluster, "shutdown", lambda: None)  # the tests' own cluster serves
        monkeypatch.setattr(cluster, "init", lambda num_cpus: None)
    for name, text in named_files(page).items():
        Path(name).write_text(text)
    names: dict[str, Any] = {"__name__": "page"}
    if "shards" in needs(page) and page != README:
        run(README, blocks(README, "python")[0], names)
    everything = [*blocks(page, "python"), *blocks(page, "bash")]
    for block in sorted(everything, key=lambda block: block.line):
        if (block.language, block.word) == ("python", ""):
            run(page, block, names)
        elif block.word == "run":
            for line in block.text.splitlines():
                arguments = shlex.split(line, comments=True)[1:]
                result = CliRunner().invoke(app, arguments)
                assert result.exit_code == 0, (line, result.output)
    printed = capsys.readouterr().out
    for block in blocks(page, "python"):
        for expected in re.findall(r"(?m)^\s*print\(.*\)  # (.+)$", block.text):
            assert expected in printed


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_fragments_parse(page: Path) -> None:
    """A block that cannot run by itself is valid Python or YAML."""
    for block in blocks(page, "python"):
        ast.parse(block.text, name_of(page))
    for block in blocks(page, "yaml"):
        yaml.safe_load(block.text)


def path_of(module: str) -> str:
    """`jobs/chaos.py` for `jobs.chaos`."""
    return f"{module.replace('.', '/')}.py"


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_the_commands_exist(page: Path) -> None:
    """Targets, scripts, files, subcommands and options in a page's shell blocks exist."""
    targets = set(re.findall(r"(?m)^([\w-]+):", (ROOT / "Makefile").read_text()))
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for block in blocks(page, "bash"):
        text = re.sub(r"python -m ([\w.]+)", lambda it: f"python {path_of(it[1])}", block.text)
        for line in text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["make"]:
                assert words[1] in targets, line
            for path in re.findall(r"\b(?:jobs|benchmarks|infra)/[\w./]+\.\w+", line):
                assert (ROOT / path).is_file(), line
            options = {word.partition("=")[0] for word in words if word.startswith("--")}
            if words[:1] == ["rayingest"]:
                options_of = commands[words[1]].params
                assert options <= {name for option in options_of for name in option.opts}, line
            script = re.search(r"\b((?:jobs|benchmarks)/\w+\.py)(.*)", line)
            if script:
                folder = (ROOT / script[1]).parent
                source = "".join(path.read_text() for path in folder.glob("*.py"))
                for option in re.findall(r"(--[\w-]+)", script[2]):
                    assert f'"{option}"' in source, line


def test_the_runtime_environment_excludes_files() -> None:
    """The file that README's `ray job submit` names keeps folders out of the job's copy."""
    assert "excludes" in yaml.safe_load((ROOT / "infra/runtime_env.yaml").read_text())
