"""Arguments of benchmarks, and the rows that they write."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path

import pytest

from benchmarks import plot_throughput, rows, throughput


def test_turns_too_short_are_told_and_not_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A warning stands before and after the figures; the last row of sufficient length counts."""
    usual = throughput.CASES["images"]
    assert throughput.too_short(usual, usual) == ""
    for less in ({"drain": usual.drain - 1}, {"batches": usual.batches - 1}):
        warning = throughput.too_short(dataclasses.replace(usual, **less), usual)
        assert "made in advance" in warning
    printed = throughput.report("images", {}, warning).splitlines()
    assert [printed[0], printed[-1], len(printed)] == [warning, warning, 3]
    file, picture = tmp_path / "rows.jsonl", tmp_path / "peers.svg"
    row = {"time": "noon", "case": "images", "contestants": {}}
    rows.append_row(file, {**row, "short": True})
    with pytest.raises(SystemExit):
        plot_throughput.main([str(file), str(picture)])
    rows.append_row(file, row)
    capsys.readouterr()
    plot_throughput.main([str(file), str(picture)])
    assert capsys.readouterr().out == "left out: images of noon, whose turns were too short\n"
    assert picture.exists()


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        (
            "throughput",
            ["tokens", "--only", "Grain, tuned"],
            "tokens has no loader Grain, tuned, only DataLoader / ",
        ),
        ("throughput", ["--rounds", "0"], "--rounds: must be 1 or more, is 0"),
        ("throughput", ["--json", "{folder}"], "cannot be written"),
        ("first_batch", ["--json", "{folder}/file/row.jsonl"], "--json: no folder for"),
        ("decoders", ["--pictures", "0", "--big", "0"], "no picture"),
    ],
)
def test_a_command_that_can_give_nothing_is_told_before_the_work(
    name: str, arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error is one line of the command line."""
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match="2"):
        importlib.import_module(f"benchmarks.{name}").main(
            [argument.format(folder=tmp_path) for argument in arguments]
        )
    assert said in capsys.readouterr().err.splitlines()[-1]


def test_rows_are_appended_where_they_are_wanted(tmp_path: Path) -> None:
    """The folder is created; a missing file, row or library is named."""
    path = rows.row_file(str(tmp_path / "new" / "folder" / "rows.jsonl"))
    with pytest.raises(SystemExit, match=r"no rows of JSON in .*rows\.jsonl: .*No such file"):
        rows.read_rows(path)
    rows.append_row(None, {"lost": 1})
    for number in range(2):
        rows.append_row(path, {"number": number})
    assert rows.read_rows(path) == [{"number": 0}, {"number": 1}]
    path.write_text("")
    with pytest.raises(SystemExit, match="it is empty"):
        rows.read_rows(path)
    with pytest.raises(
        SystemExit,
        match=r"no-such-thing is not installed here: make bench-env, then \.venv-peers/bin",
    ):
        rows.origin("numpy", "no-such-thing")
