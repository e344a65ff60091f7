"""The parts of the benchmarks, on a corpus of a few pictures. What they measure is theirs to tell, not tested."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.jobs import job


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """24 pictures in 3 shards."""
    return job("bench_corpus").make_corpus(
        tmp_path_factory.mktemp("bench"), samples=24, shards=3, processes=1
    )


def test_pictures_are_of_photographs_size_and_always_the_same() -> None:
    """About 500 x 400 and 57 kB, all different."""
    made = [job("bench_corpus").picture(i) for i in range(6)]
    assert made == [job("bench_corpus").picture(i) for i in range(6)]
    assert len(set(made)) == 6
    assert 40_000 < np.mean(list(map(len, made))) < 75_000
    widths, heights = zip(*(Image.open(io.BytesIO(data)).size for data in made), strict=True)
    assert (min(*widths, *heights), max(*widths, *heights)) == (333, 500)


def test_a_corpus_is_made_once(corpus: Any) -> None:
    """What is there is taken as it is."""
    before = [path.stat().st_mtime_ns for path in corpus.shards]
    again = job("bench_corpus").make_corpus(
        corpus.shards[0].parents[1], samples=24, shards=3, processes=1
    )
    assert again == corpus
    assert [path.stat().st_mtime_ns for path in again.shards] == before


def test_both_contestants_give_the_same_samples(corpus: Any) -> None:
    """Every picture once an epoch, of one size and type, with its label; an epoch's first batch is told."""
    contestants = job("bench_contestants")
    images = contestants.TarImages(corpus.shards)
    pairs = [images[i] for i in range(len(images))]
    assert [label for _, label in pairs] == list(range(24))
    assert {(tuple(image.shape), image.dtype) for image, _ in pairs} == {
        ((224, 224, 3), torch.uint8)
    }
    assert len(contestants.torch_loader(images, batch=8, workers=1)) == 3
    with contestants.our_loader(corpus.shards, 8, 0, corpus.shards[0].parent / "index") as loader:
        batches = list(loader)
        assert sorted(label for batch in batches for label in batch["label"].tolist()) == list(
            range(24)
        )
        assert {(tuple(batch["image"].shape), batch["image"].dtype) for batch in batches} == {
            ((8, 224, 224, 3), torch.uint8)
        }
        endless = contestants.Contestant("ours", loader)
        assert [endless.take() for _ in range(7)] == [True, False, False, True, False, False, True]
        assert endless.step == 1
        start = job("bench_loader").see_start(endless, 0.0, epochs=2, steps=3)
        assert [len(start.step), len(start.boundaries), len(start.slow_boundaries)] == [4, 2, 2]
        endless.close()


def test_decode_paths_are_compared_by_time_and_quality() -> None:
    """A picture at a time: Pillow is the measure, what decodes all and resizes by Pillow gives the same."""
    bench, corpus = job("bench_images"), job("bench_corpus")
    figures = bench.compare([corpus.picture(0), corpus.picture(1, (640, 480))], rounds=2, show="")
    pillow, turbo = figures[bench.REFERENCE], figures["turbo"]
    assert pillow["ratio"]["median"] == 1
    assert pillow["psnr_min"] == figures["simplejpeg and Pillow's resize"]["psnr_min"] == bench.SAME
    assert 45 < turbo["psnr_min"] <= turbo["psnr"] < bench.SAME
    assert "turbo" in bench.report(figures)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`bench_loader`, to which all processes below this one are idle, a cluster's of other tests too."""
    made = job("bench_loader")
    monkeypatch.setattr(made, "IDLE_SHARE", float("inf"))
    return made


def test_a_turn_and_a_run_are_summarised(bench: Any) -> None:
    """Figures of a turn are of its batches; ratios are taken round by round; the row says where it comes from."""

    class Idle:
        name = "idle"
        taken = 0

        def take(self, count: int = 1) -> bool:
            self.taken += count
            return self.taken == 1

    idle = Idle()
    turn = bench.take_turn(idle, batch=8, batches=5, drain=2)
    assert idle.taken == 7
    assert turn.rate > 0
    assert turn.cpu_ms + 1e-6 >= turn.trainer_cpu_ms >= 0

    def at(rate: float) -> Any:
        return bench.Turn(rate, 1.0, 0.5, 0.01)

    start = bench.Start(cold=0.5, step=[0.1, 0.2], boundaries=[0.1], slow_boundaries=[0.01])
    turns = {
        bench.PEER: [at(90), at(200)],
        bench.CONTROL: [at(110), at(200)],
        bench.OURS: [at(110), at(210)],
    }
    figures = bench.summarise(turns, dict.fromkeys(turns, start))
    assert figures["ratio"]["max"] == pytest.approx(1.1)
    assert figures["ratio"]["min"] == pytest.approx(1.05)
    assert figures["cpu_ratio"]["median"] == 1
    assert figures["control_ratio"]["median"] == pytest.approx((110 / 90 + 1) / 2)
    assert "1.08 (middle half 1.06..1.09, all 1.05..1.10)" in bench.report(figures)
    row = json.loads(json.dumps({**job("bench_rows").origin(), **figures}))
    assert row["cores"] == os.cpu_count()
    assert row["versions"]["torch"] == torch.__version__


def test_planning_costs_are_printed_for_each_world_size(capsys: pytest.CaptureFixture[str]) -> None:
    """One line a world size, the global batch grown where ranks would have less than 16 rows."""
    arguments = "--blocks 400 --samples-each 50 --shards 4 --batch 64 --steps 8 --world-sizes 1 8"
    job("plan_scale").main(arguments.split())
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("400 blocks, 20,000 samples, 4 shards")
    assert [line.split()[:2] for line in printed[2:]] == [["1", "64"], ["8", "128"]]


def test_loaders_of_tables_are_given_the_same_rows(tmp_path: Path) -> None:
    """Whatever loads them: all rows once an epoch, in columns of one type and shape."""
    tables = job("peer_tables")
    tokens = tables.token_rows(tmp_path, files=2, rows=40)
    floats = tables.float_columns(tmp_path, files=2, rows=1024)
    for table, width in ((tokens, 1), (floats, 17)):
        theirs = list(tables.torch_loader(table, workers=0))
        with tables.our_loader(table, workers=0) as loader:
            ours = list(loader)
        assert len(ours) == len(theirs) == (5 if table is tokens else 2)
        for batch in ours:
            del batch["__index__"]
        assert len(ours[0]) == width
        for name, column in theirs[0].items():
            assert (column.dtype, column.shape) == (ours[0][name].dtype, ours[0][name].shape)
            mine, his = (
                torch.cat([batch[name] for batch in some]).flatten().sort()[0]
                for some in (ours, theirs)
            )
            assert torch.equal(mine, his)


class Made:
    """A loader of 3 batches an epoch, that counts what it is asked for."""

    epochs = 0

    def __iter__(self) -> Any:
        self.epochs += 1
        return iter(range(3))


def test_a_turn_of_whole_epochs_begins_a_new_one(bench: Any) -> None:
    """Whatever is left of the last, and ends with it."""
    made = Made()
    contestant = job("bench_contestants").Contestant("made", made)
    assert contestant.take(5) is False
    turn = job("bench_peers").take_epoch(contestant, batch=8)
    assert made.epochs == 3
    assert turn.rate > 0
    assert turn.hand_over * turn.rate < 3 * 8
    assert contestant.take() is True


def test_a_contestant_elsewhere_takes_as_many_as_it_is_told() -> None:
    """Line by line through the pipes, until nothing more is said; then it is closed."""
    child, contestants = job("peer_child"), job("bench_contestants")
    contestant, answers = contestants.Contestant("made", Made()), io.StringIO()
    child.serve(contestant, io.StringIO("1\n2\n1\n"), answers)
    assert answers.getvalue().split() == ["true", "false", "true"]
    assert contestant.loader is None


def test_a_contestant_in_another_process(
    monkeypatch: pytest.MonkeyPatch, corpus: Any, tmp_path: Path
) -> None:
    """It answers when batches were taken, however chatty its libraries are, and says when it has ended."""
    child = job("peer_child")
    (tmp_path / "chatty.py").write_text(
        "def loader(files, workers):\n    print('hello')\n    return [[file.name] * workers for file in files]\n"
        "def broken(files, workers):\n    raise SystemExit(3)\n"
    )
    monkeypatch.setattr(child, "PYTHON", Path(sys.executable))
    monkeypatch.setattr(child, "ROOT", f"{tmp_path}{os.pathsep}{child.ROOT}")
    one = child.Child("chatty", ("chatty", "loader"), corpus.shards, 1)
    assert [one.take(), one.take(2), one.take()] == [True, False, True]
    one.close()
    other = child.Child("broken", ("chatty", "broken"), corpus.shards, 1)
    with pytest.raises(RuntimeError, match="broken has ended: exit status 3"):
        other.take()
    other.close()


def test_copies_in_other_formats_have_all_samples(corpus: Any, tmp_path: Path) -> None:
    """What the writers of other formats are given: every picture and its label as in the tars, every row of tokens."""
    formats, tables = job("peer_formats"), job("peer_tables")
    samples = list(formats.samples(corpus.shards))
    assert [label for _, label in samples] == list(range(24))
    assert samples[5][0] == job("bench_corpus").picture(5)
    table = tables.token_rows(tmp_path, files=2, rows=20)
    rows = list(formats.token_tensors(tables.token_arrays(table)))
    whole = tables.InMemory(table)
    assert len(rows) == len(whole) == 40
    assert all(torch.equal(row, whole[number]["tokens"]) for number, row in enumerate(rows))


def test_pictures_of_figures_are_drawn() -> None:
    """A bar for each contestant and a line for each size of samples, from the last rows; whole XML."""
    spread = {"median": 2.0, "q1": 1.0, "q3": 64.0}
    row = {"case": "images", "contestants": {"DataLoader": {"ratio": dict.fromkeys(spread, 1.0)}}}
    rows = [
        row,
        {**row, "contestants": {**row["contestants"], "rayingest & more": {"ratio": spread}}},
    ]
    peers = ElementTree.fromstring(job("plot_peers").draw(rows[1:]))
    drawn = [element.text for element in peers.iter() if element.tag.endswith("text")]
    assert {"images", "DataLoader", "rayingest & more", "2.00", "1/32"} <= {*drawn}
    figures = {
        "stragglers": 0,
        "planner_ms": 1,
        "dispatch_ms": 1,
        "reads_per_block": 2,
        "peak_mib": 50,
        "waiting": 0,
    }
    worlds = [
        {"world_size": n, "sample_bytes": size, **figures}
        for n in (1, 64)
        for size in (2000, 60_000)
    ]
    simulation = ElementTree.fromstring(
        job("plot_simulation").draw([*worlds, {**worlds[0], "stragglers": 0.02}])
    )
    assert len(
        [element for element in simulation.iter() if element.tag.endswith("circle")]
    ) == 4 * len(worlds)


def test_peers_are_compared_round_by_round() -> None:
    """Ratios are to the DataLoader's turn of the same round, of rate and of CPU."""
    bench = job("bench_peers")
    ours, turn = "rayingest", job("bench_loader").Turn
    turns = {
        bench.PEER: [turn(100, 2.0, 1.0, 0.0), turn(200, 2.0, 1.0, 0.0)],
        ours: [turn(300, 1.0, 1.0, 0.0)] * 2,
    }
    figures = bench.summarise(turns, row_bytes=1000)
    assert figures[ours]["ratio"]["median"] == pytest.approx((3 + 1.5) / 2)
    assert figures[ours]["cpu_ratio"]["median"] == 2
    assert figures[ours]["mb_per_second"]["median"] == pytest.approx(0.3)
    assert "2.25 (1.88 to 2.62)" in bench.report("tokens", figures)
