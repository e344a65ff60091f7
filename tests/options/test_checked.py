"""What the public calls take: every wrong option is one error that names it, its value and what would work."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rayingest as ri
from rayingest.api.data import description_of

DATA = ri.read_json("/nowhere/*.jsonl").batch(8)
"""Whatever looks at it fails: options are refused before that."""

CALLS: dict[str, Callable[..., Any]] = {
    "read_webdataset": ri.read_webdataset,
    "read_parquet": ri.read_parquet,
    "read_json": ri.read_json,
    "shuffle": DATA.shuffle,
    "batch": DATA.batch,
    "loader": DATA.loader,
    "Pool": ri.Pool,
}
NEEDED = {
    "read_webdataset": {"urls": "a"},
    "read_parquet": {"urls": "a"},
    "read_json": {"urls": "a"},
    "batch": {"size": 8},
}


def refused(call: str, **options: Any) -> str:
    with pytest.raises(ri.ConfigError) as caught:
        CALLS[call](**{**NEEDED.get(call, {}), **options})
    assert caught.value.__cause__ is None
    return str(caught.value)


@pytest.mark.parametrize(
    ("call", "option"),
    [(call, option) for call, fn in CALLS.items() for option in inspect.signature(fn).parameters],
)
def test_every_option_has_a_kind(call: str, option: str) -> None:
    """What is of no kind at all is refused by name, whatever the option."""
    assert refused(call, **{option: object()}).startswith(f"{option}=<")


COUNT, POSITIVE, FLAG = "a whole number, 0 or more", "a whole number, 1 or more", "True or False"
URLS = "a path, folder, glob, brace range or URL, or a list of them"


@pytest.mark.parametrize(
    ("call", "options", "message"),
    [
        *(
            ("loader", {"epochs": wrong}, f"epochs={wrong!r}: {POSITIVE}")
            for wrong in (0, -1, 1.5, True)
        ),
        ("loader", {"prefetch": "2"}, f"prefetch='2': {COUNT}"),
        (
            "loader",
            {"max_bytes": "1GB", "workers": 0},
            "max_bytes='1GB': a whole number of bytes, 1 or more",
        ),
        (
            "loader",
            {"max_bytes": -1, "workers": 0},
            "max_bytes=-1: a whole number of bytes, 1 or more",
        ),
        ("loader", {"rank": 0.0, "world_size": 1}, f"rank=0.0: {COUNT}"),
        ("loader", {"rank": 0, "world_size": 1.0}, f"world_size=1.0: {POSITIVE}"),
        (
            "loader",
            {"workers": True},
            "workers=True: a whole number of decoders (0: none, and no Ray)",
        ),
        ("loader", {"device": "gpu"}, "device='gpu': 'cpu', 'cuda' or 'cuda:<index>'"),
        ("loader", {"device": "mps"}, "device='mps': 'cpu', 'cuda' or 'cuda:<index>'"),
        ("loader", {"device": "cuda:x"}, "device='cuda:x': 'cpu', 'cuda' or 'cuda:<index>'"),
        ("loader", {"pool": 3}, "pool=3: a rayingest.Pool"),
        ("loader", {"pin_memory": "no"}, f"pin_memory='no': {FLAG}"),
        ("loader", {"uneven": "yes"}, f"uneven='yes': {FLAG}"),
        ("loader", {"after_copy": 3}, "after_copy=3: functions by field, as in {'image': "),
        (
            "loader",
            {"after_copy": {"x": 3}},
            "after_copy={'x': 3}: 3 for 'x' is not callable; functions by field",
        ),
        ("loader", {"start_timeout": "5"}, "start_timeout='5': a number of seconds, more than 0"),
        ("loader", {"start_timeout": 0}, "start_timeout=0: a number of seconds, more than 0"),
        ("loader", {"start_timeout": float("nan")}, "start_timeout=nan: a number of seconds"),
        ("loader", {"on_error": "skp"}, "on_error='skp': choose 'raise' or 'skip'"),
        ("loader", {"on_error": None}, "on_error=None: choose 'raise' or 'skip'"),
        *(
            (
                "loader",
                {"on_error": "skip", "max_errors": wrong},
                f"max_errors={wrong!r}: a number of bad samples",
            )
            for wrong in (-1, -0.5, 0.0, 1.5, True, "3")
        ),
        (
            "loader",
            {"on_error": "skip", "quarantine": 3},
            "quarantine=3: a folder on this machine",
        ),
        (
            "loader",
            {"on_error": "skip", "quarantine": "s3://b/c"},
            "quarantine='s3://b/c': a folder on this machine",
        ),
        ("loader", {"max_errors": 3}, "max_errors=3 is for on_error='skip'"),
        ("loader", {"quarantine": "x"}, "quarantine='x' is for on_error='skip'"),
        ("loader", {"rank": 0}, "rank=0 and world_size=None: give both"),
        ("loader", {"epochs": 0, "prefetch": -1}, f"prefetch=-1: {COUNT}; epochs=0: {POSITIVE}"),
        (
            "loader",
            {"worker": 3},
            "there is no option 'worker'; allowed: rank, world_size, workers, ",
        ),
        (
            "Pool",
            {"workers": 0},
            "workers=0: a whole number of decoders, 1 or more; for none use loader(workers=0)",
        ),
        ("Pool", {"start_timeout": "5"}, "start_timeout='5': a number of seconds, more than 0"),
        ("batch", {"size": 8.0}, f"size=8.0: {POSITIVE}"),
        ("batch", {"size": True}, f"size=True: {POSITIVE}"),
        ("batch", {"partial": "pud"}, "partial='pud': choose 'drop', 'pad' or 'short'"),
        ("batch", {"collate": 3}, "collate=3: a function"),
        ("shuffle", {"seed": -1}, "seed=-1: a whole number from 0 to 2**64 - 1"),
        ("shuffle", {"seed": 1 << 64}, f"seed={1 << 64}: a whole number from 0 to 2**64 - 1"),
        ("shuffle", {"seed": None}, "seed=None: a whole number from 0 to 2**64 - 1"),
        ("shuffle", {"window": 0}, f"window=0: {POSITIVE}"),
        ("shuffle", {"lanes": 1.5}, f"lanes=1.5: {POSITIVE}"),
        ("read_json", {"block_bytes": 0}, "block_bytes=0: a whole number of bytes, 1 or more"),
        (
            "read_json",
            {"block_bytes": "2MB"},
            "block_bytes='2MB': a whole number of bytes, 1 or more",
        ),
        (
            "read_json",
            {"block_bytes": 1e6},
            "block_bytes=1000000.0: a whole number of bytes, 1 or more",
        ),
        ("read_json", {"storage_options": 3}, "storage_options=3: a mapping of options of fsspec"),
        ("read_json", {"index": 3}, "index=3: a path, or a URL, of a file or folder"),
        ("read_webdataset", {"strict": "no"}, f"strict='no': {FLAG}"),
        ("read_webdataset", {"allow_pipe": "no"}, f"allow_pipe='no': {FLAG}"),
        ("read_webdataset", {"max_expansion": 0}, f"max_expansion=0: {POSITIVE}"),
        ("read_json", {"urls": None}, f"urls=None: {URLS}"),
        ("read_json", {"urls": b"a"}, f"urls=<bytes>: {URLS}"),
        ("read_json", {"urls": {"a", "b"}}, f"urls=<set>: {URLS}"),
        ("read_json", {"urls": []}, f"urls=<list>: it is empty; {URLS}"),
        ("read_json", {"urls": " "}, f"urls=<str>: it is empty; {URLS}"),
        (
            "read_json",
            {"urls": ["a", b"b"]},
            f"urls=<list>: its item 1 is not a path or URL; {URLS}",
        ),
    ],
)
def test_a_wrong_option_is_one_error_before_anything_starts(
    call: str, options: dict[str, Any], message: str
) -> None:
    """Its name, its value, what would work: though neither the data nor a cluster is there."""
    assert refused(call, **options).startswith(message)


def test_what_may_be_secret_is_not_shown() -> None:
    """Credentials stand in URLs and in the options of storage."""
    told = refused(
        "read_json", urls=["https://u:hunter2@h/x", 3], storage_options="hunter2", index={"hunter2"}
    )
    assert told.count("; ") == 3
    assert "hunter2" not in told
    told = refused("read_json", urls="a", cache_dir="s3://u:hunter2@h/x?sig=hunter2", cache_bytes=1)
    assert "cache_dir='s3://h/x?sig=***': a folder on this machine" in told


def test_a_long_value_is_cut() -> None:
    """The error stays one that can be read."""
    assert len(refused("shuffle", seed="x" * 10_000)) < 250


def test_pythons_own_errors_stay() -> None:
    """Too many arguments, or too few, are told by the call itself."""
    with pytest.raises(
        TypeError, match=re.escape("take() missing 1 required positional argument: 'count'")
    ):
        DATA.take()  # type: ignore[call-arg]


def test_numpys_numbers_are_numbers(tmp_path: Path) -> None:
    """They become Python's, so that what is made of them is the same."""
    (tmp_path / "a.jsonl").write_text('{"i": 1}\n' * 8)
    data = ri.read_json(str(tmp_path / "a.jsonl"), block_bytes=np.int32(1 << 20)).batch(np.int64(4))
    described = description_of(data)
    assert type(described.source.block_bytes) is type(described.batching.size) is int  # type: ignore[union-attr]
    shuffled = data.shuffle(np.uint64((1 << 64) - 1), window=np.int16(8), lanes=np.int8(1))
    assert shuffled == data.shuffle((1 << 64) - 1, 8, 1)
    options = {
        "rank": np.int64(0),
        "world_size": np.int32(2),
        "workers": np.int64(0),
        "prefetch": np.uint8(1),
    }
    skip = {"on_error": "skip", "max_errors": np.float32(0.5), "quarantine": tmp_path / "bad"}
    with shuffled.loader(
        **options, **skip, epochs=np.int64(1), max_bytes=np.int64(1), uneven=np.False_
    ) as loader:
        assert [len(batch["i"]) for batch in loader] == [2, 2]
        assert loader.state_dict()["seed"] == (1 << 64) - 1
    assert ri.Pool(np.int64(2), start_timeout=np.float64(3)).workers == 2


@pytest.mark.parametrize("device", ["cpu", "cpu:0", torch.device("cpu")])
def test_devices_are_named_as_pytorch_does(device: Any, tmp_path: Path) -> None:
    """By a word, with or without an index, or as an object."""
    (tmp_path / "a.jsonl").write_text('{"i": 1}\n')
    with ri.read_json(tmp_path / "a.jsonl").batch(1).loader(workers=0, device=device) as loader:
        assert loader.device == torch.device("cpu")


def test_a_pool_has_its_own_workers() -> None:
    """Another number beside it is a contradiction; the default, and the same number, are none."""
    pool = ri.Pool(3)
    assert refused("loader", pool=pool, workers=2).startswith("workers=2 beside a pool of 3: ")
    assert refused("loader", pool=pool, workers=0).startswith("workers=0 beside a pool of 3: ")
    for agreeing in ({}, {"workers": 3}):
        assert refused("loader", pool=pool, rank=3, world_size=1, **agreeing).startswith(
            "rank 3 of world size 1"
        )


def test_a_call_keeps_its_face() -> None:
    """Name, signature and documentation, for whoever asks."""
    assert list(inspect.signature(ri.Dataset.loader).parameters)[:4] == [
        "self",
        "rank",
        "world_size",
        "workers",
    ]
    assert "number of decoders of this rank" in (ri.Dataset.loader.__doc__ or "")
