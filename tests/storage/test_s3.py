"""Object stores and web servers through the loader: S3 with s3fs, and HTTP byte ranges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rayingest as ri
from rayingest.storage.files import Storage
from rayingest.storage.listing import list_shards
from tests.support.s3_server import KEY, SECRET, S3Server
from tests.support.streams import augment, run, write_shards
from tests.support.web import WebServer


def described(urls: Any, index: Path, options: dict[str, Any] | None = None) -> Any:
    data = ri.read_webdataset(urls, block_bytes=8192, index=index, storage_options=options)
    return (
        data.decode(png=ri.images.RandomResizedCrop(8))
        .map(augment)
        .shuffle(seed=3, window=64)
        .batch(8)
    )


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards, and what is read from them."""
    folder = tmp_path_factory.mktemp("local")
    write_shards(folder, [20, 30, 22])
    return folder


def test_s3_gives_what_local_files_give(s3: S3Server, local: Path, tmp_path: Path) -> None:
    """A glob gives the same batches; neither index nor state holds the credentials."""
    for path in local.glob("*.tar"):
        s3.put("bucket", f"data/{path.name}", path.read_bytes())
    ours = described("s3://bucket/data/*.tar", tmp_path, s3.options)
    steps, state = run(ours, epochs=2)
    assert steps == run(described(str(local / "*.tar"), tmp_path / "local.arrow"), epochs=2)[0]
    kept = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert not any(
        secret in text
        for secret in (KEY, SECRET)
        for text in (kept.decode("latin-1"), str(state), repr(ours))
    )
    assert run(ours, state=state, steps=1)[0]


def test_an_object_that_changed_is_noticed(
    s3: S3Server, local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loader compares etags of equal sizes; the next run builds the index again."""
    first, second, _ = sorted(local.glob("*.tar"))
    url = s3.put("changing", "one.tar", first.read_bytes())
    with described(url, tmp_path, s3.options).loader(workers=0, max_bytes=1) as loader:
        batches = iter(loader)
        next(batches)
        changed = bytearray(first.read_bytes())
        changed[600] ^= 1
        s3.put("changing", "one.tar", bytes(changed))
        monkeypatch.setattr("rayingest.storage.files._TRUSTED_S", 0.0)
        with pytest.raises(ri.DataError, match="written again"):
            list(batches)
    s3.put("changing", "one.tar", second.read_bytes())
    with described(url, tmp_path, s3.options).loader(workers=0) as loader:
        assert sum(len(batch["i"]) for batch in loader) == 24


@pytest.mark.parametrize("name", ["*.tar", "", "a.tar", "a-{0..20}.tar"])
def test_a_missing_bucket_is_an_error_at_once(s3: S3Server, name: str) -> None:
    """It matches nothing, without a retry, and no message shows the secret."""
    s3.put("bucket", "somewhere", b"")
    storage = Storage(s3.options)
    with pytest.raises(
        ri.ConfigError, match=r"s3://nowhere/.*names nearby: .*s3://bucket"
    ) as caught:
        list_shards(f"s3://nowhere/{name}", suffixes=[".tar"], storage=storage)
    assert SECRET not in str(caught.value)
    assert storage.counters.retries == 0


def test_a_dead_endpoint_is_an_error_after_the_attempts_of_storage_alone(s3: S3Server) -> None:
    """The error names the address."""
    storage = Storage(
        {**s3.options, "endpoint_url": "http://127.0.0.1:9"}, attempts=2, first_wait=0
    )
    with pytest.raises(
        ri.DataError, match=r"after 2 attempts.*Could not connect to the endpoint.*127.0.0.1:9"
    ):
        storage.read_all("s3://bucket/a.tar")
    fs, _ = storage.filesystem("s3://bucket/a.tar")
    assert fs.config_kwargs["retries"]["total_max_attempts"] == 1


def test_names_with_characters_of_globs_are_written_in_brackets(s3: S3Server) -> None:
    """Braces in a name take a backslash."""
    for name in ("[z].jsonl", "z.jsonl", "{1,2}.jsonl"):
        s3.put("globs", name, b'{"x": 1}')
    for url, found in {
        "[z].jsonl": "z.jsonl",
        "[[]z].jsonl": "[z].jsonl",
        r"\{1,2\}.jsonl": "{1,2}.jsonl",
    }.items():
        assert list_shards(
            f"s3://globs/{url}", suffixes=[".jsonl"], storage_options=s3.options
        ).paths == (found,)


def test_s3_has_a_connection_for_every_read() -> None:
    """More than botocore's ten, unless the user gives another number."""
    for given in ({}, {"connect_timeout": 7}, {"max_pool_connections": 5}):
        fs, _ = Storage({"key": KEY, "secret": SECRET, "config_kwargs": given}).filesystem(
            "s3://bucket/name"
        )
        assert fs.config_kwargs.items() >= {"max_pool_connections": 64, **given}.items()


def test_web_servers_give_what_local_files_give(
    web: WebServer, local: Path, tmp_path: Path
) -> None:
    """Holds through transient failures; whole blocks are requested, side by side."""
    web.files = {f"/{path.name}": path.read_bytes() for path in local.glob("*.tar")}
    web.failures = [503, 429]
    ours = described(f"{web.url}/s-{{0000..0002}}.tar", tmp_path)
    assert run(ours)[0] == run(described(str(local / "*.tar"), tmp_path / "local.arrow"))[0]
