"""The first batch: of a new loader from the start, of one that resumes at 90 % of the epoch, and what is lost by it.

    python jobs/bench_resume.py --rounds 5 --json row.jsonl

The images of `bench_loader.py`. Ray runs already, as in a job on a cluster; everything else, actors included, begins
anew each time. The two cases take turns. What comes after a resume is compared, sample by sample, with an epoch that
was not interrupted; exits with 1 where that differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
from bench_contestants import our_loader
from bench_corpus import make_corpus
from bench_loader import ROOT, machine, spread
from tqdm import tqdm


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--samples", type=int, default=4096, help="of the corpus")
    parser.add_argument("--shards", type=int, default=8, help="of the corpus")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "bench", help="where the corpus is kept")
    parser.add_argument("--json", type=Path, help="append the results to this file, one line a run")
    options = parser.parse_args()
    corpus = make_corpus(options.folder, options.samples, options.shards)
    seconds: dict[str, list[float]] = {"start": [], "resume": []}

    def make() -> Any:
        return our_loader(corpus.shards, options.batch, options.workers, options.folder / "index")

    ray.init("local", num_cpus=options.workers + 2, object_store_memory=2 << 30, include_dashboard=False)
    with make() as loader:
        at = int(0.9 * len(loader))
        whole, state = [], {}
        for batch in tqdm(loader, desc="an epoch"):
            whole.append(batch["__index__"].numpy().copy())
            if len(whole) == at:
                state = loader.state_dict()
    identical = True
    for _ in tqdm(range(options.rounds), desc="rounds"):
        for case, times in seconds.items():
            begun = time.perf_counter()
            with make() as loader:
                if case == "resume":
                    loader.load_state_dict(state)
                batches = iter(loader)
                first = next(batches)
                times.append(time.perf_counter() - begun)
                begin, end = (at, len(whole)) if case == "resume" else (0, 1)
                got = [first] if end == begin + 1 else [first, *batches]
                same = zip((batch["__index__"].numpy() for batch in got), whole[begin:end], strict=True)
                identical &= all(np.array_equal(one, other) for one, other in same)
    ratios = [resume / start for start, resume in zip(*seconds.values(), strict=True)]
    figures = {case: spread(times) for case, times in seconds.items()} | {"ratio": spread(ratios)}
    print(json.dumps({name: figure["median"] for name, figure in figures.items()} | {"identical": identical}))
    if options.json:
        with options.json.open("a") as file:
            file.write(json.dumps({**machine(), **figures}) + "\n")
    return 0 if identical else 1


if __name__ == "__main__":
    sys.exit(main())
