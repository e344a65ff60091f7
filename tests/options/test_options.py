"""Every wrong option of a public call is one error with its name, value and the allowed ones."""

from __future__ import annotations

import inspect
import pydoc
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rayingest as ri
from rayingest.api.data import description_of
from rayingest.api.readers import READERS

DATA = ri.read_json("/nowhere/*.jsonl").batch(8)
"""Reading it would fail: options are refused before that."""

READS = {f"read_{name}": reader for name, reader in READERS.items()}
VERBS = ("where", "filter", "length", "pack", "weighted", "take", "skip", "epoch", "shuffle")
VERBS += ("map", "map_batches", "batch", "loader", "to_ray")
CALLS: dict[str, Callable[..., Any]] = {
    **READS,
    **{verb: getattr(DATA, verb) for verb in VERBS},
    "read_format": ri.read_format,
    "Pool": ri.Pool,
}
NEEDED: dict[str, dict[str, Any]] = {
    **{name: {"urls": "a"} for name in READS},
    "read_format": {"name": "csv", "urls": "a"},
    "batch": {"size": 8},
    "pack": {"length": 8},
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
def test_every_option_has_a_type(call: str, option: str) -> None:
    """A value that no option can have is refused by the name of the option."""
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
        ("loader", {"rank": 0}, "rank=0, world_size=None: one of them is missing; give both"),
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
    """The error has its name, its value and the allowed ones; there are no data, and no cluster."""
    assert refused(call, **options).startswith(message)


def test_values_that_may_be_secret_are_hidden() -> None:
    """URLs and storage options may hold credentials."""
    told = refused(
        "read_json", urls=["https://u:hunter2@h/x", 3], storage_options="hunter2", index={"hunter2"}
    )
    assert told.count("; ") == 3
    assert "hunter2" not in told
    told = refused("read_json", urls="a", cache_dir="s3://u:hunter2@h/x?sig=hunter2", cache_bytes=1)
    assert "cache_dir='s3://h/x?sig=***': a folder on this machine" in told


def test_a_long_value_is_cut() -> None:
    """The error stays short."""
    assert len(refused("shuffle", seed="x" * 10_000)) < 250


def test_pythons_own_errors_stay() -> None:
    """Too many or too few arguments are errors of the call itself."""
    with pytest.raises(
        TypeError, match=re.escape("take() missing 1 required positional argument: 'count'")
    ):
        DATA.take()  # type: ignore[call-arg]


def test_numpys_numbers_are_numbers(tmp_path: Path) -> None:
    """They become Python's, so that results are the same."""
    (tmp_path / "a.jsonl").write_text('{"i": 1}\n' * 8)
    data = ri.read_json(str(tmp_path / "a.jsonl"), block_bytes=np.int32(1 << 20)).batch(np.int64(4))
    described = description_of(data)
    block_bytes, batching = described.source.block_bytes, described.batching
    assert batching is not None
    assert type(block_bytes) is type(batching.size) is int
    shuffled = data.shuffle(seed=np.uint64((1 << 64) - 1), window=np.int16(8), lanes=np.int8(1))
    assert shuffled == data.shuffle(seed=(1 << 64) - 1, window=8, lanes=1)
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
        assert loader.state_dict()["order"]["seed"] == (1 << 64) - 1
    assert ri.Pool(np.int64(2), start_timeout=np.float64(3)).workers == 2


@pytest.mark.parametrize("device", ["cpu", "cpu:0", torch.device("cpu")])
def test_devices_are_named_as_pytorch_does(device: Any, tmp_path: Path) -> None:
    """Text, with or without an index, and objects work."""
    (tmp_path / "a.jsonl").write_text('{"i": 1}\n')
    with ri.read_json(tmp_path / "a.jsonl").batch(1).loader(workers=0, device=device) as loader:
        assert loader.device == torch.device("cpu")


def test_a_pool_has_its_own_workers() -> None:
    """A number that differs from the pool's is refused; the default and the same number are not."""
    pool = ri.Pool(3)
    for workers in (0, 2):
        words = f"its pool: workers={workers} cannot be used with a pool of 3 workers; leave one"
        assert words in refused("loader", pool=pool, workers=workers)
    for agreeing in ({}, {"workers": 3}):
        assert refused("loader", pool=pool, rank=3, world_size=1, **agreeing).startswith(
            "rank 3 of world size 1"
        )


def test_a_call_keeps_its_signature_and_docstring() -> None:
    """`help` and completion see those of the call itself."""
    assert list(inspect.signature(ri.Dataset.loader).parameters)[:4] == [
        "self",
        "rank",
        "world_size",
        "workers",
    ]
    assert "number of decoders of this loader" in (ri.Dataset.loader.__doc__ or "")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: DATA.select(image=3), "image=3: the name of a field"),
        (lambda: DATA.select(a="x", image=""), "image='': the name of a field"),
        (lambda: DATA.select("jpg"), "a field needs a name, as in select(image='jpg')"),
        (DATA.select, "select: expected new names"),
        (lambda: ri.read_json("a").select(a="b").decode(b=str), "no field 'b'; there are 'a'"),
        (lambda: DATA.decode(image="png"), "image='png': a function, or another callable"),
        (ri.read_json("a").decode, "decode: no field is named"),
        (lambda: DATA.map(3), "fn=3: a function, or another callable"),
        (lambda: DATA.map_batches("f"), "fn='f': a function, or another callable"),
        (lambda: DATA.split(0.9, 1.5), "fractions[1]=1.5: a number above 0, at most 1"),
        (lambda: DATA.split(True), "fractions[0]=True: a number above 0, at most 1"),
        (lambda: DATA.split(0.5, seed=-1), "seed=-1: a whole number from 0"),
        (lambda: DATA.split(0.5, sed=1), "there is no option 'sed'; allowed: seed; did you mean"),
        (lambda: DATA.split(0.9, 0.2), "split: the fractions"),
    ],
)
def test_a_wrong_argument_of_a_verb_is_refused_at_once(
    call: Callable[[], Any], message: str
) -> None:
    """Fields, functions and fractions are checked by the verb that gets them."""
    with pytest.raises(ri.ConfigError) as caught:
        call()
    assert message in str(caught.value)


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_a_reader_shows_the_options_of_all_readers(reader: Callable[..., Any]) -> None:
    """They are in the signature, with their defaults, and each option is documented."""
    shared = {"index": None, "block_bytes": 2 << 20, "storage_options": None}
    shared |= {"cache_dir": None, "cache_bytes": None}
    parameters = inspect.signature(reader).parameters
    assert {name: parameters[name].default for name in shared} == shared
    for name in parameters:
        assert re.search(rf"^    {name}: ", inspect.getdoc(reader) or "", re.MULTILINE), name


def test_help_shows_a_reader_in_full() -> None:
    """`help` prints the signature with the names of the option types."""
    text = pydoc.plain(pydoc.render_doc(ri.read_csv))
    assert "storage_options: 'StorageOptions | None' = None" in text
    assert "delimiter: 'Character | None' = None" in text
    assert "Default: a comma, a tab in .tsv files." in text
