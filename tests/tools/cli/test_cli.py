"""The command line: its output and its errors."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner, Result

import rayingest as ri
from rayingest.api.readers import READERS
from rayingest.tools.cli import app
from tests.support.format_cases import CASES
from tests.support.streams import write_shards

CONFIG = """
read: {{format: webdataset, urls: "{urls}", index: index/}}
select: {{image: png, i: json}}
decode: {{image: {{RandomResizedCrop: 8}}}}
shuffle: {{seed: 3, window: 64}}
batch: {{size: 8}}
loader: {{workers: 2, device: cuda}}
"""

Run = Callable[..., Result]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with three shards of 42 samples together and their configuration."""
    monkeypatch.chdir(tmp_path)
    write_shards(tmp_path / "data", [20, 15, 7])
    (tmp_path / "index").mkdir()
    (tmp_path / "c.yaml").write_text(CONFIG.format(urls="data/*.tar"))
    return tmp_path


@pytest.fixture
def run(folder: Path) -> Run:
    """Runs the command with arguments."""

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, arguments)

    return run


def printed_rows(result: Result) -> dict[str, list[str]]:
    """Return the printed lines by the word in front of them."""
    assert result.exit_code == 0, result.output
    rows: dict[str, list[str]] = {}
    name = ""
    for line in result.stdout.splitlines():
        name = line[:14].strip() or name
        rows.setdefault(name, []).append(line[14:])
    return rows


def test_check_says_what_a_configuration_gives(run: Run, folder: Path) -> None:
    """`check` shows data, fingerprint, order, steps and the fields of the first batch, without
    device or Ray.
    """
    rows = printed_rows(run("check", "c.yaml"))
    config = ri.load_config("c.yaml")
    with config.dataset().loader(rank=0, world_size=1, workers=0) as loader:
        state = loader.state_dict()
    assert rows["data"] == [f"42 samples in 3 shards under {folder}/data/"]
    assert rows["blocks"][0].startswith("3, ")
    assert rows["fingerprint"] == [state["fingerprint"]]
    assert rows["order"] == [
        "window, version 1: seed 3, windows of 48 samples (6 steps), 1 lane(s)"
    ]
    assert rows["steps"] == ["5 per epoch, 8 samples each; partial drop, 2 samples dropped"]
    assert rows["reads"] == ["1.00 per block and epoch on 1 rank(s)"]
    fields = [" ".join(line.split()) for line in rows["first batch"]]
    assert fields == ["image uint8 (8, 8, 8, 3)", "i list of 8 dict", "__index__ int64 (8,)"]


def test_check_shows_a_ranks_part(run: Run) -> None:
    """With a world size, the batch is rank 0's, and ranks that share a lane read its blocks
    repeatedly.
    """
    rows = printed_rows(run("check", "c.yaml", "--world-size", "4"))
    assert rows["reads"] == ["4.00 per block and epoch on 4 rank(s)"]
    assert "uint8 (2, 8, 8, 3)" in rows["first batch"][0]


def test_a_mixture_is_shown_by_its_sources(run: Run, folder: Path) -> None:
    """A mixture is checked as a whole, and indexed and verified by source."""
    one = "{read: {format: webdataset, urls: data/%s.tar}, select: {cls: json}}"
    sources = f"{{a: {one % 's-0000'}, b: {one % 's-0001'}}}"
    (folder / "m.yaml").write_text(
        f"mix: {{sources: {sources}, weights: {{a: 2, b: 1}}}}\nbatch: {{size: 3}}\n"
    )
    rows = printed_rows(run("check", "m.yaml"))
    assert [line.split() for line in rows["sources"]] == [
        ["a", "20", "samples"],
        ["b", "15", "samples"],
    ]
    assert rows["order"][0].startswith(
        "mixed, version 1: file order of 2 sources: a 2, b 1, until first; "
    )
    assert rows["steps"] == ["9 per epoch, 3 samples each; partial drop"]
    assert len(printed_rows(run("index", "m.yaml"))["state"]) == 2
    assert printed_rows(run("verify", "m.yaml"))["verified"] == [
        f"{n} samples in 1 shards, 0 bad" for n in (20, 15)
    ]
    result = run("inspect", "m.yaml")
    assert result.exit_code == 1
    assert "one source, not a mixture of a, b" in result.stderr


def test_index_makes_it_once_and_sees_a_change(run: Run, folder: Path) -> None:
    """`index` builds with a progress bar, then uses the cache, and builds again after a change."""
    first = run("index", "c.yaml")
    assert printed_rows(first)["state"] == ["built"]
    assert "3/3" in first.stderr
    (kept,) = (folder / "index").glob("*.arrow")
    assert printed_rows(first)["index"] == [str(kept)]
    again = run("index", "c.yaml")
    assert printed_rows(again)["state"] == ["cached, up to date"]
    assert "3/3" not in again.stderr
    write_shards(folder / "data", [20, 15, 8])
    changed = printed_rows(run("index", "c.yaml"))
    assert changed["state"] == ["built"]
    assert changed["fingerprint"] != printed_rows(first)["fingerprint"]


def test_index_can_be_made_on_ray(run: Run, cluster: Any, folder: Path) -> None:
    """Tasks of the cluster build the same index."""
    write_shards(folder / "data", [1] * 9)
    rows = printed_rows(run("index", "c.yaml", "--on-ray"))
    assert rows.pop("state") == ["built"]
    (kept,) = (folder / "index").glob("*.arrow")
    kept.unlink()
    here = printed_rows(run("index", "c.yaml"))
    assert here.pop("state") == ["built"]
    assert rows == here


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (CONFIG.format(urls="none/*.tar"), "matches no file"),
        (CONFIG.format(urls="data/*.tar") + "epochs: 3", "epochs: there is no such key"),
        (
            CONFIG.format(urls="data/*.tar").replace("device: cuda", "device: gpu"),
            "device: 'gpu': 'cpu'",
        ),
        (
            CONFIG.format(urls="data/*.tar").replace("size: 8", "size: 80"),
            "less than one global batch of 80",
        ),
        (
            CONFIG.format(urls="data/*.tar").replace("png", "jpg"),
            "a field 'jpg'; there are '__key__', 'json', 'png'; did you mean 'png'? [shard",
        ),
        (CONFIG.format(urls="c.yaml"), "c.yaml"),
    ],
    ids=[
        "no files",
        "unknown key",
        "no such device",
        "too large a batch",
        "no such field",
        "no tar",
    ],
)
def test_what_cannot_work_is_one_line_on_stderr(
    run: Run, folder: Path, text: str, words: str
) -> None:
    """The status is 1 without a traceback, whether file, data or order is at fault."""
    (folder / "c.yaml").write_text(text)
    result = run("check", "c.yaml")
    assert result.exit_code == 1
    errors = [
        line for line in result.stderr.splitlines() if line and "making the index" not in line
    ]
    assert len(errors) == 1
    assert errors[0].startswith("rayingest: ")
    assert words in errors[0]


def test_a_url_in_the_place_of_a_configuration_is_told_without_its_credentials(run: Run) -> None:
    """Every command hides them."""
    for command in (["check"], ["inspect"], ["pack", "out"]):
        result = run(command[0], "http://me:hunter2@h/c.yaml?sig=hunter2", *command[1:])
        assert result.exit_code == 1
        assert "hunter2" not in result.output
        assert "/h/c.yaml?sig=***" in result.output


def test_debug_shows_where_an_error_comes_from(run: Run, folder: Path) -> None:
    """`--debug` raises the error itself."""
    (folder / "c.yaml").write_text(CONFIG.format(urls="none/*.tar"))
    result = run("check", "c.yaml", "--debug")
    assert isinstance(result.exception, ri.ConfigError)


def test_the_command_is_installed(folder: Path) -> None:
    """`rayingest` is beside the interpreter and finds modules of the current folder."""
    (folder / "mine.py").write_text("def f(sample):\n    return {'i': sample['i']['i']}\n")
    (folder / "c.yaml").write_text(CONFIG.format(urls="data/*.tar") + "map: mine:f\n")
    command = Path(sys.executable).with_name("rayingest")
    done = subprocess.run(
        [command, "check", "c.yaml"], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "i             int64 (8,)" in done.stdout
    done = subprocess.run(
        [command, "--version"], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == f"rayingest {ri.__version__}\n"


def test_inspect_shows_shards_fields_and_pictures(run: Run, folder: Path) -> None:
    """Also for data by format and glob, and as a configuration decodes it."""
    rows = printed_rows(
        run(
            "inspect",
            "data/*.tar",
            "--format",
            "webdataset",
            "--samples",
            "5",
            "--sheet",
            "sheet.png",
        )
    )
    assert rows["shards"][1].split()[1:] == ["1", "20", "s-0000.tar"]
    fields = {line.split()[0]: line for line in rows["fields"]}
    assert "uint8 (" in fields["png"]
    assert "dict; {'i': 0}" in fields["json"]
    assert rows["images"] == ["'png' of 5 samples in sheet.png"]
    with Image.open(folder / "sheet.png") as sheet:
        assert sheet.size == (5 * 128, 128)
    nowhere = run("inspect", "data/*.tar", "--format", "webdataset", "--sheet", "none/sheet.png")
    assert nowhere.exit_code == 1
    assert nowhere.stderr.endswith(
        "\nrayingest: --sheet: none/sheet.png cannot be written: No such file or directory\n"
    )
    assert "uint8 (8, 8, 3)" in " ".join(printed_rows(run("inspect", "c.yaml"))["fields"])


OF_READER = {"json": "json lines", "arrow": "arrow file"}


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_has_its_commands(reader: str, run: Run, folder: Path) -> None:
    """All that can be read can be indexed, inspected and verified."""
    (folder / "any").mkdir()
    if reader == "images":
        Image.new("RGB", (8, 8)).save(folder / "any" / "a.png")
    else:
        CASES[OF_READER.get(reader, reader)].write(folder / "any")
    count = 1 if reader == "images" else 40
    how = (
        "any",
        "--format",
        reader,
        *(("--option", "lists=[many, scores]") if reader == "tfrecord" else ()),
    )
    assert printed_rows(run("index", *how))["data"][0].startswith(f"{count} samples in ")
    assert printed_rows(run("inspect", *how))["fields"]
    assert printed_rows(run("verify", *how))["verified"][0].endswith(", 0 bad")
    assert "--option oops" in run("verify", *how, "--option", "oops").stderr
    assert "'oops'" in run("verify", *how, "--option", "oops=1").stderr


def test_verify_lists_all_that_is_bad(run: Run, folder: Path) -> None:
    """An undecodable picture with its offset, a shard without an index; else nothing."""
    assert printed_rows(run("verify", "c.yaml"))["verified"] == ["42 samples in 3 shards, 0 bad"]
    first, second, _ = sorted((folder / "data").iterdir())
    data = bytearray(first.read_bytes())
    at = data.index(b"\x89PNG", 3000)
    data[at : at + 4] = b"oops"
    first.write_bytes(bytes(data))
    second.write_bytes(second.read_bytes()[:5000])
    result = run("verify", "data/*.tar", "--format", "webdataset")
    assert result.exit_code == 1
    picture, shard, counts = result.stdout.splitlines()
    assert "decode of 'png'" in picture
    assert f"offset {at - 512}" in picture
    assert "s-0001.tar" in shard
    assert counts.split()[1:] == ["27", "samples", "in", "3", "shards,", "2", "bad"]
    assert "name its format" in run("verify", "data/*.tar").stderr
