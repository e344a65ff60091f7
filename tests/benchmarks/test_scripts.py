"""Each benchmark runs on a tiny input; its figures are not tested."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from benchmarks import (
    child,
    contestants,
    corpus,
    format_loaders,
    plot_simulation,
    plot_throughput,
    table_loaders,
    throughput,
    turns,
)
from jobs import bench_loader

FOLDER = Path(__file__).parents[2] / "benchmarks"
OTHER_LIBRARIES = {"torchvision_stub"}
"""A module that imports a library which only `make bench-env` installs."""


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> corpus.Corpus:
    """24 pictures in 3 shards."""
    return corpus.make_corpus(tmp_path_factory.mktemp("bench"), samples=24, shards=3, processes=1)


@pytest.mark.parametrize(
    "name", sorted({path.stem for path in FOLDER.glob("*.py")} - OTHER_LIBRARIES)
)
def test_every_module_can_be_imported(name: str) -> None:
    """Without the libraries that are compared, and without a start of the work."""
    importlib.import_module(f"benchmarks.{name}")


@pytest.mark.parametrize(
    ("name", "arguments", "printed"),
    [
        ("decoders", "--pictures 1 --big 0 --rounds 1", "turbo"),
        ("handover", "--repeats 2", "memcpy"),
        ("packing", "plan --samples 2000 --window 256", "rows of 2,048, best fit"),
        ("padding", "--samples 2000 --window 256 --batch 64", "bucketed"),
        (
            "plan_scale",
            "--blocks 400 --samples-each 50 --shards 4 --batch 64 --steps 8 --world-sizes 1 8",
            "400 blocks, 20,000 samples, 4 shards",
        ),
        ("simulate", "--samples 20000 --world-sizes 8 --steps 10", "reads/block"),
    ],
)
def test_a_benchmark_of_one_process_runs(
    name: str, arguments: str, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command line prints its table."""
    importlib.import_module(f"benchmarks.{name}").main(arguments.split())
    assert printed in capsys.readouterr().out


def test_a_corpus_is_made_once(pictures: corpus.Corpus) -> None:
    """A second call with the same arguments writes nothing."""
    before = [path.stat().st_mtime_ns for path in pictures.shards]
    again = corpus.make_corpus(pictures.shards[0].parents[1], samples=24, shards=3, processes=1)
    assert again == pictures
    assert [path.stat().st_mtime_ns for path in again.shards] == before


def test_image_loaders_give_the_same_samples(pictures: corpus.Corpus) -> None:
    """Both give every picture once an epoch, in one size and type, with its label."""
    images = contestants.TarImages(pictures.shards)
    assert [images[i][1] for i in range(len(images))] == list(range(24))
    assert len(contestants.torch_loader(images, batch=8, workers=1)) == 3
    index = pictures.shards[0].parent / "index"
    with contestants.our_loader(pictures.shards, 8, 0, index) as loader:
        batches = list(loader)
        labels = sorted(label for batch in batches for label in batch["label"].tolist())
        assert labels == list(range(24))
        assert {batch["image"].shape for batch in batches} == {(8, *images[0][0].shape)}
        endless = contestants.Contestant("ours", loader)
        assert [endless.take() for _ in range(4)] == [True, False, False, True]
        start = bench_loader.see_start(endless, 0.0, epochs=2, steps=3)
        assert [len(start.step), len(start.boundaries), len(start.slow_boundaries)] == [4, 2, 2]
        endless.close()


def test_table_loaders_give_the_same_rows(tmp_path: Path) -> None:
    """Both give all rows once an epoch, in columns of one type and shape."""
    for table in (
        table_loaders.token_rows(tmp_path, files=2, rows=40),
        table_loaders.float_columns(tmp_path, files=2, rows=1024),
    ):
        theirs = list(table_loaders.torch_loader(table, workers=0))
        with table_loaders.our_loader(table, workers=0) as loader:
            ours = list(loader)
        assert len(ours) == len(theirs) > 0
        for name, column in theirs[0].items():
            assert (column.dtype, column.shape) == (ours[0][name].dtype, ours[0][name].shape)
            mine, other = (
                torch.cat([batch[name] for batch in batches]).flatten().sort()[0]
                for batches in (ours, theirs)
            )
            assert torch.equal(mine, other)


def test_copies_in_other_formats_have_all_samples(pictures: corpus.Corpus, tmp_path: Path) -> None:
    """The writers of other formats get every picture with its label, and every row of tokens."""
    samples = list(format_loaders.samples(pictures.shards))
    assert [label for _, label in samples] == list(range(24))
    assert samples[5][0] == corpus.picture(5)
    table = table_loaders.token_rows(tmp_path, files=2, rows=20)
    rows = list(format_loaders.token_tensors(table_loaders.token_arrays(table)))
    whole = table_loaders.InMemory(table)
    assert len(rows) == len(whole) == 40
    assert all(torch.equal(row, whole[number]["tokens"]) for number, row in enumerate(rows))


class Numbers:
    """A loader of 3 batches an epoch that counts its epochs."""

    epochs = 0

    def __iter__(self) -> Iterator[int]:
        self.epochs += 1
        return iter(range(3))


def test_a_turn_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn is a number of batches, or a whole epoch that ends the one before."""
    monkeypatch.setattr(turns, "IDLE_SHARE", float("inf"))  # processes of other tests may work
    monkeypatch.setattr(throughput, "wait_until_idle", lambda: None)
    numbers = Numbers()
    contestant = contestants.Contestant("numbers", numbers)
    turn = turns.take_turn(contestant, batch=8, batches=5, drain=2)
    assert turn.rate > 0
    assert turn.cpu_ms + 1e-6 >= turn.trainer_cpu_ms >= 0
    assert throughput.take_epoch(contestant, batch=8).rate > 0
    assert numbers.epochs == 4
    assert contestant.take() is True


def test_a_contestant_in_another_process(
    monkeypatch: pytest.MonkeyPatch, pictures: corpus.Corpus, tmp_path: Path
) -> None:
    """It answers once it has taken the batches, whatever its library prints."""
    (tmp_path / "chatty.py").write_text(
        "def loader(files, workers):\n"
        "    print('hello')\n"
        "    return [[file.name] * workers for file in files]\n"
        "def broken(files, workers):\n"
        "    raise SystemExit(3)\n"
    )
    monkeypatch.setattr(child, "PYTHON", Path(sys.executable))
    monkeypatch.setattr(child, "ROOT", f"{tmp_path}{os.pathsep}{child.ROOT}")
    one = child.Child("chatty", ("chatty", "loader"), pictures.shards, 1)
    assert [one.take(), one.take(2), one.take()] == [True, False, True]
    one.close()
    other = child.Child("broken", ("chatty", "broken"), pictures.shards, 1)
    with pytest.raises(RuntimeError, match="exit status 3"):
        other.take()
    other.close()


def test_figures_are_made_of_turns_of_the_same_round() -> None:
    """A ratio is taken round by round: 300/100 and 300/200 have the median 2.25."""
    turn = turns.Turn
    both = {
        throughput.PEER: [turn(100, 2.0, 1.0, 0.0), turn(200, 2.0, 1.0, 0.0)],
        "rayingest": [turn(300, 1.0, 1.0, 0.0)] * 2,
    }
    figures = throughput.summarise(both, row_bytes=1000)
    assert figures["rayingest"]["ratio"]["median"] == pytest.approx(2.25)
    assert "2.25 (1.88 to 2.62)" in throughput.report("tokens", figures)
    start = bench_loader.Start(cold=0.5, step=[0.1], boundaries=[0.1], slow_boundaries=[0.01])
    three = dict.fromkeys(("rayingest", "DataLoader", "DataLoader again"), both["rayingest"])
    ours = bench_loader.summarise(three, dict.fromkeys(three, start))
    assert ours["ratio"]["median"] == 1
    assert "samples a second" in bench_loader.report(ours)


def test_pictures_of_figures_are_drawn() -> None:
    """A bar for each contestant, a circle for each figure of a world; well-formed XML."""
    spread = {"median": 2.0, "q1": 1.0, "q3": 64.0}
    others = {"DataLoader": {"ratio": dict.fromkeys(spread, 1.0)}}
    row: dict[str, Any] = {
        "case": "images",
        "contestants": {**others, "rayingest & more": {"ratio": spread}},
    }
    bars = ElementTree.fromstring(plot_throughput.draw([row]))
    words = {element.text for element in bars.iter() if element.tag.endswith("text")}
    assert {"images", "DataLoader", "rayingest & more", "2.00"} <= words
    figures = {
        "stragglers": 0,
        "planner_ms": 1,
        "dispatch_ms": 1,
        "reads_per_block": 2,
        "peak_mib": 50,
        "waiting": 0,
    }
    worlds = [{"world_size": n, "sample_bytes": 2000, **figures} for n in (1, 64)]
    curves = ElementTree.fromstring(plot_simulation.draw(worlds))
    circles = [element for element in curves.iter() if element.tag.endswith("circle")]
    assert len(circles) == 4 * len(worlds)
