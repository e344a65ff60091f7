"""Measure the throughput of rayingest on Ray beside torch's DataLoader, with one transform and
corpus.

    python -m jobs.bench_loader --rounds 15 --json runs/bench/results.jsonl

rayingest decodes JPEGs with its fast image backend, the DataLoader with Pillow, unless `--path` and
`--peer-path` say otherwise. The contestants take turns: one works while the others are idle with
full queues. A turn first takes the batches that were made in advance (not timed), then times
`--batches` batches. The speed of a machine changes more slowly than turns do, so the ratio within a
round counts. Two DataLoaders take turns too: their ratio shows the noise. docs/benchmarks.md
explains the figures.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from tqdm import tqdm

from benchmarks.contestants import Contestant, TarImages, our_loader, torch_loader
from benchmarks.corpus import Corpus, make_corpus
from benchmarks.rows import ROOT, append_row, origin, positive, row_file
from benchmarks.turns import Turn, spread, take_turn
from rayingest.transforms.images.jpeg import BACKENDS, PILLOW, TURBO

OURS, PEER, CONTROL = "rayingest", "DataLoader", "DataLoader again"
SLOW_STEPS = 8
"""Of an epoch's end, in which the slow training loop is slow."""


@dataclass(frozen=True)
class Start:
    """Seconds at the start of a contestant: from making the loader to the first batch, between two
    batches, to the first batch of each later epoch, and the same for a loop of half the speed.
    """

    cold: float
    step: list[float]
    boundaries: list[float]
    slow_boundaries: list[float]


def see_start(contestant: Contestant, begun: float, epochs: int, steps: int) -> Start:
    """Time the first batch of a loader that was made at `begun`, and the starts of its first
    epochs.
    """
    contestant.take()
    cold = time.perf_counter() - begun
    step, boundaries = [], []
    for _ in tqdm(
        range(epochs * steps), desc=f"{contestant.name}: start and {epochs} epochs", leave=False
    ):
        asked = time.perf_counter()
        first = contestant.take()
        (boundaries if first else step).append(time.perf_counter() - asked)
    slow, pause = [], 2 * statistics.mean(step)
    while len(slow) < epochs:
        if contestant.step > steps - SLOW_STEPS:
            time.sleep(pause)
        asked = time.perf_counter()
        if contestant.take():
            slow.append(time.perf_counter() - asked)
    return Start(cold, step, boundaries, slow)


def summarise(turns: dict[str, list[Turn]], starts: dict[str, Start]) -> dict[str, Any]:
    """Return the figures of a run.

    Each ratio is of one round: our rate to the mean of both DataLoaders' rates, the DataLoaders'
    rates to each other, and the mean of their CPU time per sample to ours, which other programs
    disturb least.
    """
    rates = {name: [turn.rate for turn in some] for name, some in turns.items()}
    rounds = list(zip(rates[OURS], rates[PEER], rates[CONTROL], strict=True))
    figures: dict[str, Any] = {
        "ratio": spread([2 * ours / (one + other) for ours, one, other in rounds]),
        "control_ratio": spread([other / one for _, one, other in rounds]),
        "samples_per_second": {name: spread(values) for name, values in rates.items()},
    }
    costs = [[turn.cpu_ms for turn in turns[name]] for name in (OURS, PEER, CONTROL)]
    figures["cpu_ratio"] = spread(
        [(one + other) / (2 * ours) for ours, one, other in zip(*costs, strict=True)]
    )
    for field in ("cpu_ms", "trainer_cpu_ms", "hand_over"):
        figures[field] = {
            n: statistics.median(getattr(turn, field) for turn in some) for n, some in turns.items()
        }
    figures["first_batch_cold"] = {name: start.cold for name, start in starts.items()}
    figures["step"] = {name: spread(start.step) for name, start in starts.items()}
    figures["first_batch_of_later_epochs"] = {
        name: spread(start.boundaries) for name, start in starts.items()
    }
    figures["the_same_when_slow"] = {
        name: spread(start.slow_boundaries) for name, start in starts.items()
    }
    return figures


def run(args: argparse.Namespace, corpus: Corpus) -> dict[str, Any]:
    """Take all measurements.

    The DataLoaders start first: they fork, and a process with Ray's threads should not fork.
    """
    steps = corpus.samples // args.batch
    images = TarImages(corpus.shards, args.peer_path)
    contestants: list[Contestant] = []
    starts: dict[str, Start] = {}

    def enter(name: str, make: Any) -> None:
        begun = time.perf_counter()
        contestants.append(Contestant(name, make()))
        starts[name] = see_start(contestants[-1], begun, args.epochs, steps)

    try:
        for name in (PEER, CONTROL):
            enter(name, lambda: torch_loader(images, args.batch, args.workers))
        ray.init(
            "local",
            num_cpus=args.workers + 2,
            object_store_memory=args.store,
            include_dashboard=False,
        )
        enter(
            OURS,
            lambda: our_loader(
                corpus.shards, args.batch, args.workers, args.folder / "index", args.path
            ),
        )
        turns: dict[str, list[Turn]] = {contestant.name: [] for contestant in contestants}
        with tqdm(total=args.rounds, desc="rounds") as bar:
            for number in range(args.rounds):
                at = number % len(contestants)
                for contestant in contestants[at:] + contestants[:at]:
                    turns[contestant.name].append(
                        take_turn(contestant, args.batch, args.batches, args.drain)
                    )
                bar.set_postfix_str(
                    ", ".join(f"{name} {some[-1].rate:.0f}/s" for name, some in turns.items())
                )
                bar.update()
        stats = contestants[-1].loader.stats()
    finally:
        for contestant in contestants:
            contestant.close()
        ray.shutdown()
    return {**summarise(turns, starts), "stats": stats}


def report(figures: dict[str, Any]) -> str:
    """Return the figures as text."""

    def shown(values: dict[str, float], scale: float = 1.0, digits: int = 2) -> str:
        m, q1, q3, low, high = (
            f"{scale * values[k]:.{digits}f}" for k in ("median", "q1", "q3", "min", "max")
        )
        return f"{m} (middle half {q1}..{q3}, all {low}..{high})"

    lines = [
        f"throughput, ours to DataLoader           {shown(figures['ratio'])}",
        f"control, DataLoader to DataLoader        {shown(figures['control_ratio'])}",
        f"CPU of all processes, DataLoader to ours {shown(figures['cpu_ratio'])}",
    ]
    for name, rates in figures["samples_per_second"].items():
        lines += [
            f"{name}",
            f"  samples a second                       {shown(rates, digits=0)}",
            f"  CPU a sample, all processes            {figures['cpu_ms'][name]:.2f} ms",
            f"  CPU a sample, training process         {figures['trainer_cpu_ms'][name]:.3f} ms",
            f"  hand-over of a batch that lies ready   {1e3 * figures['hand_over'][name]:.2f} ms",
            f"  first batch, cold                      {figures['first_batch_cold'][name]:.2f} s",
            f"  between two batches                    {shown(figures['step'][name], 1e3, 0)} ms",
            f"  to the first batch of a later epoch    "
            f"{shown(figures['first_batch_of_later_epochs'][name], 1e3, 0)} ms",
            f"  the same in a loop half as fast        "
            f"{shown(figures['the_same_when_slow'][name], 1e3, 1)} ms",
        ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=positive, default=15, help="turns of each contestant")
    parser.add_argument("--batch", type=positive, default=64)
    parser.add_argument(
        "--workers", type=positive, default=2, help="decoders, and workers of each DataLoader"
    )
    parser.add_argument("--batches", type=positive, default=24, help="batches timed in a turn")
    parser.add_argument(
        "--drain", type=positive, default=32, help="batches of a turn before the timed ones"
    )
    parser.add_argument(
        "--epochs",
        type=positive,
        default=4,
        help="epochs at the start whose first batches are timed",
    )
    parser.add_argument(
        "--path", choices=BACKENDS, default=TURBO, help="image backend of rayingest"
    )
    parser.add_argument(
        "--peer-path", choices=BACKENDS, default=PILLOW, help="image backend of the DataLoaders"
    )
    parser.add_argument("--samples", type=positive, default=4096, help="samples of the corpus")
    parser.add_argument("--shards", type=positive, default=8, help="shards of the corpus")
    parser.add_argument(
        "--store", type=positive, default=2 << 30, help="bytes of Ray's object store"
    )
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "runs" / "bench", help="folder of the corpus"
    )
    parser.add_argument("--json", type=row_file, help="file to which a line of JSON is appended")
    args = parser.parse_args(argv)
    corpus = make_corpus(args.folder, args.samples, args.shards)
    described = {**origin(), "corpus": {"samples": corpus.samples, "bytes": corpus.nbytes}}
    figures = run(args, corpus)
    print(report(figures))
    append_row(args.json, {**described, **figures})


if __name__ == "__main__":
    main()
