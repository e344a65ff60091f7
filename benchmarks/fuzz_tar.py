"""Search for tars that the reader takes wrongly, guided by code coverage.

    pip install atheris
    python -m benchmarks.fuzz_tar --minutes 10

The rule is that of `tests/formats/test_tar_fuzz.py`: the reader returns exactly what the standard
library returns, or raises a DataError that names the offset; no other error, no endless loop (30
s), at most `--memory` MiB. A failing case is written to the folder of findings; `--replay FILE`
runs it again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from random import Random
from types import ModuleType

_SEEDS = 30
_SCRATCH = Path("/dev/shm")  # noqa: S108 (a folder of our own in it: files there are memory)


class Given(Random):
    """Random choices taken from given bytes; zeros after their end."""

    def __new__(cls, data: bytes) -> Given:
        return super().__new__(cls)

    def __init__(self, data: bytes) -> None:
        super().__init__(0)
        self._left = data

    def getrandbits(self, k: int) -> int:
        count = (k + 7) // 8
        taken, self._left = self._left[:count], self._left[count:]
        return int.from_bytes(taken.ljust(count, b"\0"), "big") >> (count * 8 - k)


def main() -> None:
    """Fuzz for some minutes, or replay one case."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--memory", type=int, default=1024, help="MiB that a case may take")
    parser.add_argument(
        "--folder", type=Path, default=Path("runs/fuzz_tar"), help="for the corpus and the findings"
    )
    parser.add_argument("--replay", type=Path, help="read this case once instead")
    options = parser.parse_args()
    atheris = _atheris()
    with atheris.instrument_imports(include=["rayingest.formats"]):
        from tests.support import tar_reference

    with tempfile.TemporaryDirectory(dir=_SCRATCH if _SCRATCH.is_dir() else None) as scratch:

        def one(data: bytes) -> None:
            _try(tar_reference, data, Path(scratch))

        if options.replay is not None:
            one(options.replay.read_bytes())
            print("read as it should be")
            return
        corpus = options.folder / "corpus"
        corpus.mkdir(parents=True, exist_ok=True)
        for seed in range(_SEEDS):
            random = Random(seed)
            for kind, rest in (
                (0x00, tar_reference.archive(random)),
                (0x60, tar_reference.archive(random)),
            ):
                (corpus / f"valid-{kind}-{seed}").write_bytes(bytes([kind]) + rest)
            (corpus / f"damage-{seed}").write_bytes(b"\xff" + random.randbytes(400))
        limits = [
            f"-max_total_time={options.minutes * 60:.0f}",
            f"-rss_limit_mb={options.memory}",
            "-timeout=30",
        ]
        files = [
            f"-artifact_prefix={options.folder}/",
            "-max_len=12000",
            "-len_control=0",
            "-print_final_stats=1",
        ]
        atheris.Setup([sys.argv[0], *limits, *files, str(corpus)], one)
        atheris.Fuzz()


def _try(tars: ModuleType, data: bytes, folder: Path) -> None:
    """Check one case. Its first byte chooses: raw bytes, bytes with header checksums, or choices of
    damage to a valid tar.
    """
    kind, rest = data[:1], data[1:]
    if kind < b"\x55":
        tars.check(rest, None, folder)
    elif kind < b"\xaa":
        tars.check(tars.with_sums(rest), None, folder)
    else:
        given = Given(rest)
        before = tars.archive(given)
        tars.check(tars.damaged(before, given), before, folder)


def _atheris() -> ModuleType:
    try:
        import atheris
    except ImportError:
        sys.exit("atheris is not installed; pip install atheris (CPython 3.11 to 3.13 on Linux)")
    return atheris  # type: ignore[no-any-return]


if __name__ == "__main__":
    main()
