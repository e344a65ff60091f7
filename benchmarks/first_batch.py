"""Time first batches of rayingest and other loaders: cold, second epoch, and after a resume.

    make bench-env
    .venv-peers/bin/python -m benchmarks.first_batch --rounds 3 --json row.jsonl

Uses the pictures, transform and loaders of `throughput.py` with two workers each. In a round each
contestant runs in two new processes (`first_batch_turn.py`): one starts and goes on to the second
epoch's first batch, the other resumes at 90 % of the first epoch. The samples after the resume are
compared with those of the first process. A loader without a state takes 90 % of an epoch again, in
a time that grows with the epoch; these epochs are short.

Indexes and copies in other formats exist beforehand. Exits with status 1 if rayingest continues
differently after a resume.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.child import python
from benchmarks.corpus import Corpus, make_corpus
from benchmarks.first_batch_turn import OURS, PEERS, place
from benchmarks.rows import ROOT, append_row, origin, positive, row_file
from benchmarks.turns import spread

SHOWN = 3000
"""Characters of what a process that failed has said."""
Turn = dict[str, Any]


def take(name: str, turn: str, folder: Path, corpus: Corpus, workers: int) -> Turn:
    """Run one turn in a process of its own; return its figures."""
    interpreter = python() if PEERS[name].elsewhere else sys.executable
    job = [str(interpreter), "-m", "benchmarks.first_batch_turn", name, turn, str(folder)]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
    }  # for the transform: not everywhere is this package installed
    said = folder / "said.txt"  # no pipe: what a library leaves running would hold it open
    with said.open("w") as file:
        ended = subprocess.run(
            [*job, *map(str, corpus.shards), f"--workers={workers}"],
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if ended.returncode:
        raise SystemExit(
            f"{name}, {turn}: exit status {ended.returncode}\n{said.read_text()[-SHOWN:]}"
        )
    shown: Turn = json.loads((folder / f"{turn}.json").read_text())
    return shown


def run(
    names: Sequence[str], rounds: int, corpus: Corpus, workers: int
) -> dict[str, list[tuple[Turn, Turn]]]:
    """Run a start and a resume of each contestant, round by round."""
    turns: dict[str, list[tuple[Turn, Turn]]] = {name: [] for name in names}
    for number in tqdm(range(-1, rounds), desc="rounds"):
        at = number % len(names)
        for name in [*names[at:], *names[:at]]:
            with tempfile.TemporaryDirectory() as made:
                if number < 0:
                    take(name, "prepare", Path(made), corpus, workers)
                else:
                    start, resume = (
                        take(name, turn, Path(made), corpus, workers)
                        for turn in ("start", "resume")
                    )
                    turns[name].append((start, resume))
    return turns


def compare(whole: list[list[int]], rest: list[list[int]]) -> dict[str, Any]:
    """Compare what follows a resume with the end of the epoch that it continues.

    Returns whether both are identical, the number of samples lost, and of samples that came again.
    Raises ValueError if the epoch itself has a sample twice.
    """
    at = place(len(whole))
    if len({*chain.from_iterable(whole)}) != sum(map(len, whole)):
        raise ValueError("an epoch has a sample more than once")
    due, got = (Counter(chain.from_iterable(batches)) for batches in (whole[at:], rest))
    return {
        "identical": rest == whole[at:],
        "lost": (due - got).total(),
        "again": (got - due).total(),
    }


def summarise(turns: dict[str, list[tuple[Turn, Turn]]]) -> dict[str, Any]:
    """Return the figures of each contestant.

    Seconds to the first batch, of a step, to the second epoch's first batch and to the first after
    a resume; the resume's to the start's of the same round; what followed the resumes. A step is an
    epoch's mean, and its median, which is near 0 if several batches come at once.
    """
    figures = {}
    for name, some in turns.items():
        starts = [start["seconds"] for start, _ in some]
        followed = [compare(start["labels"][:-1], resume["labels"]) for start, resume in some]
        figures[name] = {
            "cold": spread([seconds[0] for seconds in starts]),
            "step": spread([statistics.mean(seconds[1:-1]) for seconds in starts]),
            "median_step": spread([statistics.median(seconds[1:-1]) for seconds in starts]),
            "second_epoch": spread([seconds[-1] for seconds in starts]),
            "resume": spread([resume["seconds"] for _, resume in some]),
            "ratio": spread([resume["seconds"] / start["seconds"][0] for start, resume in some]),
            "by": some[0][1]["by"],
            "identical": all(one["identical"] for one in followed),
            "lost": max(one["lost"] for one in followed),
            "again": max(one["again"] for one in followed),
        }
    return figures


def report(figures: dict[str, Any]) -> str:
    """Return the figures as text."""
    lines = [
        f"{'first batch, seconds':20} {'cold':21} {'second epoch':21} {'a step':7} "
        f"{'resume to cold':20} what follows"
    ]
    for name, of in figures.items():
        cold, second, ratio = (
            f"{r['median']:.2f} ({r['q1']:.2f} to {r['q3']:.2f})"
            for r in (of["cold"], of["second_epoch"], of["ratio"])
        )
        follows = "identical" if of["identical"] else f"{of['lost']} lost, {of['again']} again"
        way = ", 90 % dropped" * (of["by"] != "state")
        lines.append(
            f"{name:20} {cold:21} {second:21} {of['step']['median']:<7.3f} {ratio:20} "
            f"{follows}{way}"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PEERS, default=[*PEERS])
    parser.add_argument("--rounds", type=positive, default=3, help="turns of each contestant")
    parser.add_argument("--workers", type=positive, default=2)
    parser.add_argument("--samples", type=positive, default=4096, help="of the corpus")
    parser.add_argument("--shards", type=positive, default=8, help="of the corpus")
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "runs" / "bench", help="folder of the corpus"
    )
    parser.add_argument("--json", type=row_file, help="file to which a line of JSON is appended")
    args = parser.parse_args(argv)
    here = [PEERS[name].libraries for name in args.only if not PEERS[name].elsewhere]
    # these distributions have the names of their modules
    described = origin(*(library.partition(".")[0] for library in chain(*here)))
    corpus = make_corpus(args.folder, args.samples, args.shards)
    turns = run(args.only, args.rounds, corpus, args.workers)
    figures = summarise(turns)
    print(report(figures))
    for some in turns.values():
        described["versions"] |= some[0][0]["versions"]
    append_row(args.json, {**described, "contestants": figures})
    return 0 if OURS not in figures or figures[OURS]["identical"] else 1


if __name__ == "__main__":
    sys.exit(main())
