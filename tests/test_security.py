"""What is refused until asked for, and that no credential shows anywhere."""

from __future__ import annotations

import functools
import gzip
import io
import json
import logging
import pickle
import tarfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from PIL import Image

import rayingest as ri
from rayingest.api.data import description_of
from rayingest.api.dataset import Dataset
from rayingest.errors import ConfigError, DataError, IngestError
from rayingest.formats import compression
from rayingest.storage.files import Storage
from rayingest.transforms import decoders
from rayingest.transforms.images import pixels
from tests.support.streams import write_shards
from tests.support.web import WebServer, web

__all__ = ["web"]


class Trap:
    """Unpickling it runs code."""

    sprung = 0

    def __reduce__(self) -> tuple[Callable[[], Trap], tuple[()]]:
        return spring, ()


def spring() -> Trap:
    Trap.sprung += 1
    return Trap()


def tar(folder: Path, name: str, data: bytes, suffix: str = ".tar") -> str:
    """A shard of one sample with one field."""
    path = folder / f"s{suffix}"
    with tarfile.open(path, "w:gz" if suffix == ".tar.gz" else "w") as archive:
        info = tarfile.TarInfo(f"k.{name}")
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    return str(path)


def first(data: Dataset) -> dict[str, Any]:
    with data.batch(1, collate=as_lists).loader(workers=0) as loader:
        return next(iter(loader))


def as_lists(samples: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: [sample[name] for sample in samples] for name in samples[0]}


def saved(write: Callable[..., Any], *args: Any, **kwargs: Any) -> bytes:
    file = io.BytesIO()
    write(file, *args, **kwargs)
    return file.getvalue()


OBJECTS = np.array([Trap()], dtype=object)


def unpickled_array(data: bytes) -> np.ndarray:
    array: np.ndarray = np.load(io.BytesIO(data), allow_pickle=True)
    return array


def unpickled_arrays(data: bytes) -> np.ndarray:
    array: np.ndarray = np.load(io.BytesIO(data), allow_pickle=True)["a"]
    return array


def unzipped_pickle(data: bytes) -> Any:
    return pickle.loads(gzip.decompress(data))


PICKLES: list[tuple[str, bytes, Callable[[bytes], Any], type[IngestError], str]] = [
    *(
        (name, pickle.dumps(Trap()), pickle.loads, ConfigError, "pickle.loads")
        for name in ("pkl", "pickle", "pyd")
    ),
    ("pth", pickle.dumps(Trap()), pickle.loads, ConfigError, "pickle.loads"),
    ("a.pkl", pickle.dumps(Trap()), pickle.loads, ConfigError, "pickle.loads"),
    ("pkl.gz", gzip.compress(pickle.dumps(Trap())), unzipped_pickle, ConfigError, "pickle.loads"),
    (
        "npy",
        saved(np.save, OBJECTS, allow_pickle=True),
        unpickled_array,
        DataError,
        "allow_pickle=True",
    ),
    ("npz", saved(np.savez, a=OBJECTS), unpickled_arrays, DataError, "allow_pickle=True"),
]


@pytest.mark.parametrize(
    ("name", "data", "opt_in", "error", "said"), PICKLES, ids=[case[0] for case in PICKLES]
)
def test_pickles_are_loaded_only_where_asked_for(
    tmp_path: Path,
    name: str,
    data: bytes,
    opt_in: Callable[[bytes], Any],
    error: type[IngestError],
    said: str,
) -> None:
    """The refusal names the field and the way out, which works; reading the bytes or other fields
    does too.
    """
    shard = tar(tmp_path, name, data)
    sprung = Trap.sprung
    with pytest.raises(error, match=said) as caught:
        first(ri.read_webdataset(shard))
    assert name in str(caught.value)
    assert first(ri.read_webdataset(shard).decode(**{name: bytes}))[name] == [data]
    assert first(ri.read_webdataset(shard).select(key="__key__"))["key"] == ["k"]
    assert Trap.sprung == sprung
    first(ri.read_webdataset(shard).decode(**{name: opt_in}))
    assert Trap.sprung == sprung + 1


def test_bombs_unfold_only_where_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images by their pixels, compressed fields and archives by their bytes."""
    monkeypatch.setattr(pixels, "MAX_PIXELS", 1_000)
    shard = tar(tmp_path, "png", saved(Image.new("L", (40, 30)).save, "PNG"))
    with pytest.raises(
        DataError, match=r"40x30 pixels refused: .* ri\.images\.Decode\(max_pixels=\.\.\.\)"
    ):
        first(ri.read_webdataset(shard))
    allowed = ri.images.Compose(ri.images.Decode("L", max_pixels=1_200), ri.images.Resize((4, 4)))
    assert first(ri.read_webdataset(shard).decode(png=allowed))["png"][0].shape == (4, 4, 1)

    monkeypatch.setattr(decoders, "MAX_UNPACKED", 1_000)
    fields = {
        "txt.gz": (gzip.compress(b"a" * 2_000), "gunzip", 2_000),
        "npz": (saved(np.savez_compressed, a=np.zeros(2_000, np.uint8)), "decode_npz", 1),
    }
    for name, (data, function, length) in fields.items():
        shard = tar(tmp_path, name, data)
        with pytest.raises(
            DataError, match=rf"partial\(rayingest\.transforms\.decoders\.{function}, limit="
        ) as caught:
            first(ri.read_webdataset(shard))
        assert caught.value.key == "k"
        larger = functools.partial(getattr(decoders, function), limit=5_000)
        assert len(first(ri.read_webdataset(shard).decode(**{name: larger}))[name][0]) == length


def test_shards_unfold_only_where_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a whole shard is compressed, 200 times its size is enough, or what is asked for."""
    monkeypatch.setattr(compression, "_ALWAYS_ALLOWED", 1_000)
    shard = tar(tmp_path, "bin", bytes(1 << 20), ".tar.gz")
    with pytest.raises(
        DataError, match=r"expand to more than \d+ bytes; .* give a larger max_expansion"
    ) as caught:
        first(ri.read_webdataset(shard))
    assert (caught.value.shard, caught.value.offset is not None) == (shard, True)
    assert len(first(ri.read_webdataset(shard, max_expansion=2_000))["bin"][0]) == 1 << 20
    lines = tmp_path / "l.jsonl.gz"
    lines.write_bytes(gzip.compress(json.dumps({"a": "x" * (1 << 20)}).encode()))
    with pytest.raises(DataError, match="max_expansion"):
        first(ri.read_json(lines))
    assert len(first(ri.read_json(lines, max_expansion=2_000))["a"][0]) == 1 << 20


SECRETS = {
    "password": "hunter-PASSWORD",
    "query": "hunter-QUERY",
    "option": "hunter-OPTION",
    "word": "hunter-WORD",
    "index": "hunter-INDEX",
}


def described(
    web: WebServer,
    folder: Path,
    urls: list[str] | None = None,
    then: Callable[[Any], Any] = lambda value: value,
    **options: Any,
) -> Dataset:
    """Two shards behind a password and a signature, and one from a command with a token.

    `then` works on each sample.
    """
    base = web.url.replace("http://", f"http://me:{SECRETS['password']}@")
    if urls is None:
        urls = [f"{base}/d/s-000{i}.tar?sig={SECRETS['query']}&e=1" for i in range(2)]
        urls.append(f"pipe:T={SECRETS['word']} cat {folder}/s-0002.tar # {SECRETS['word']}")
    options.setdefault("index", f"{folder}/index/")
    given = {"headers": {"X-Key": SECRETS["option"]}, "client_kwargs": {"trust_env": False}}
    data = ri.read_webdataset(urls, allow_pipe=True, storage_options=given, **options)
    data = data.select(json="json").map([lambda sample: sample["json"], then])
    return data.shuffle(seed=1).batch(4)


def log_if_slow(error: BaseException) -> str:
    """All that an error shows: text, traceback with all causes, and the pickled copy."""
    return (
        repr(error)
        + "".join(traceback.format_exception(error))
        + repr(pickle.loads(pickle.dumps(error)))
    )


def test_no_credential_shows_anywhere(
    tmp_path: Path,
    web: WebServer,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not in errors, logs at DEBUG, what things look like, the state, the kept index, statistics or
    output.
    """
    monkeypatch.setitem(Storage.__init__.__kwdefaults__, "first_wait", 0.0)
    monkeypatch.setitem(Storage.__init__.__kwdefaults__, "attempts", 2)
    caplog.set_level(logging.DEBUG)
    write_shards(tmp_path, [6, 5, 4])
    for path in tmp_path.glob("*.tar"):
        web.files[f"/d/{path.name}"] = path.read_bytes()
    shown: list[str] = []
    data = described(web, tmp_path)
    with data.loader(workers=0) as loader:
        assert sum(len(batch["__index__"]) for batch in loader) == 12
        shown += [repr(loader), repr(loader.stats()), json.dumps(loader.state_dict())]
    cache = description_of(data).source.index_cache()
    shown += [
        repr(data),
        repr(description_of(data)),
        repr(description_of(data).work),
        repr(cache),
        repr(cache.load()),
        cache.location,
        cache.key,
    ]
    kept = [path for path in (tmp_path / "index").iterdir() if path.is_file()]
    assert len(kept) == 1
    shown += [kept[0].read_bytes().decode("latin-1"), kept[0].name]
    import pyarrow as pa

    start = kept[0].read_bytes().index(b"ARROW1")
    table = pa.ipc.open_file(pa.BufferReader(kept[0].read_bytes()[start:])).read_all()
    shown += [str(table.to_pydict()), str(table.schema.metadata)]
    assert "s-0001.tar" in shown[-2], "the index is there to be looked at"

    errors = [*failures(web, tmp_path)]
    assert len(errors) == 9
    shown += [log_if_slow(error) for error in errors]
    out = capfd.readouterr()
    shown += [caplog.text, *(str(record.__dict__) for record in caplog.records), out.out, out.err]
    assert any(record.name == "fsspec.http" for record in caplog.records), (
        "logs are there to be looked at"
    )
    nothing_shows(shown)


def test_no_credential_shows_over_ray(
    cluster: Any,
    tmp_path: Path,
    web: WebServer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither in what the workers' errors say here, nor in any log of Ray's session, nor in their
    command lines.
    """
    monkeypatch.setitem(Storage.__init__.__kwdefaults__, "first_wait", 0.0)
    monkeypatch.setitem(Storage.__init__.__kwdefaults__, "attempts", 2)
    caplog.set_level(logging.DEBUG, "rayingest")
    write_shards(tmp_path, [6, 5, 4])
    for path in tmp_path.glob("*.tar"):
        web.files[f"/d/{path.name}"] = path.read_bytes()
    session = Path(cluster._private.worker._global_node.get_session_dir_path())
    skipping = {"on_error": "skip", "max_errors": 1.0, "quarantine": tmp_path / "q"}
    with ri.Pool(workers=1) as pool:
        with described(web, tmp_path, then=refuse_three).loader(
            pool=pool, epochs=1, **skipping
        ) as loader:
            assert sum(len(batch["__index__"]) for batch in loader) == 12
            shown = [
                repr(loader),
                repr(loader.stats()),
                repr(pool),
                *cluster.util.list_named_actors(),
            ]
        with described(web, tmp_path).loader(pool=pool) as loader:
            web.down = 403
            with pytest.raises(ConfigError, match="403") as refused:
                list(loader)
        web.down = 0
        with (
            described(web, tmp_path, then=refuse_three).loader(pool=pool) as loader,
            pytest.raises(DataError, match=r"three is refused.*shard http") as failed,
        ):
            list(loader)
        shown += [
            " ".join(process.cmdline()) for process in psutil.Process().children(recursive=True)
        ]
    shown += [log_if_slow(refused.value), log_if_slow(failed.value), caplog.text]
    shown += [path.read_text() for path in (tmp_path / "q").iterdir()]
    logs = [path for path in (session / "logs").rglob("*") if path.is_file()]
    assert any(path.name.startswith("worker-") for path in logs), "logs are there to be looked at"
    shown += [path.read_bytes().decode("latin-1") for path in logs]
    assert "three is refused" in shown[shown.index(caplog.text)], "the log is there to be looked at"
    nothing_shows(shown)


def refuse_three(sample: dict[str, Any]) -> dict[str, Any]:
    """A transform with a fault, which is told with the shard."""
    if sample["i"] == 3:
        raise ValueError("three is refused")
    return sample


def nothing_shows(shown: list[str]) -> None:
    """None of the secrets."""
    for where, secret in SECRETS.items():
        for text in shown:
            at = text.find(secret)
            assert at < 0, f"{where}: {text[max(0, at - 200) : at + 40]}"


def failures(web: WebServer, folder: Path) -> list[BaseException]:
    """Errors of missing, refused, failing, damaged and changed shards, of wrong options and
    indexes, and of a map.
    """
    errors: list[BaseException] = []
    base = web.url.replace("http://", f"http://me:{SECRETS['password']}@")
    signed = f"?sig={SECRETS['query']}"
    gone = f"http://me:{SECRETS['password']}@127.0.0.1:9/a.tar{signed}"
    web.files["/d/cut.tar"] = web.files["/d/s-0000.tar"][:3000]

    def fail(data: Dataset, before: Callable[[], Any] = lambda: None) -> None:
        try:
            with data.loader(workers=0) as loader:
                before()
                list(loader)
        except IngestError as error:
            errors.append(error)

    fail(described(web, folder, [f"{base}/d/none.tar{signed}"]))
    fail(described(web, folder, [f"{base}/d/cut.tar{signed}"]))
    fail(described(web, folder, [gone]))
    fail(
        described(
            web, folder, [f"pipe:T={SECRETS['word']} cat {folder}/none.tar {SECRETS['word']}"]
        )
    )
    fail(described(web, folder), before=lambda: web.failures.extend([403] * 4))
    web.failures.clear()
    fail(described(web, folder), before=lambda: web.failures.extend([503] * 40))
    web.failures.clear()
    fail(
        described(
            web, folder, index=f"{web.url.replace('//', '//me:' + SECRETS['index'] + '@')}/i/"
        )
    )
    fail(described(web, folder, then=lambda sample: sample["none"]))
    fail(described(web, folder, [f"nosuch://me:{SECRETS['password']}@h/a.tar{signed}"]))
    return errors
