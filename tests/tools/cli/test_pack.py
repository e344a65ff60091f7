"""`rayingest pack`: what it writes, and that it resumes."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

import rayingest as ri
from rayingest.api.config import load_config
from rayingest.api.data import description_of
from rayingest.api.dataset import Dataset
from rayingest.errors import ConfigError, DataError
from rayingest.tools.cli import app
from rayingest.tools.cli.pack import Packing, sections_without_use
from rayingest.tools.cli.parts import Layout
from tests.support.format_cases import CASES
from tests.support.format_samples import SAMPLES
from tests.support.s3_server import S3Server
from tests.support.streams import write_shards


def packing_of(data: Dataset, folder: str, layout: Layout) -> Packing:
    """Return the packing of these data into a folder."""
    description = description_of(data)
    return Packing(description, description.scan(0, on_ray=False), folder, layout)


def pack_here(data: Dataset, folder: Path, **layout: Any) -> Packing:
    """Pack without Ray."""
    packing = packing_of(data, str(folder), Layout(**layout))
    for shard in packing.shards:
        packing.pack(shard)
    return packing


def samples(data: Dataset) -> list[dict[str, Any]]:
    with data.batch(7, partial="short", collate=lambda samples: {"sample": samples}).loader(
        workers=0
    ) as loader:
        return [sample for batch in loader for sample in batch["sample"]]


def rows(data: Dataset) -> list[tuple[int, str]]:
    with data.batch(7, partial="short").loader(workers=0) as loader:
        return [
            row for batch in loader for row in zip(batch["id"].tolist(), batch["text"], strict=True)
        ]


@pytest.mark.parametrize(
    "name", ["webdataset, gzip", "parquet", "json lines", "mds", "hdf5", "csv"]
)
def test_what_is_packed_is_what_was_there(name: str, tmp_path: Path) -> None:
    """Tars and Parquet have every sample once, in order, in shards of the given size."""
    (tmp_path / "data").mkdir()
    CASES[name].write(tmp_path / "data")
    data = CASES[name].read(str(tmp_path / "data"))
    whole = pack_here(data, tmp_path / "tars", to="webdataset", shard_bytes=500)
    assert len(whole.shards) > 1
    ids = {"id": "id", "text": "text"}
    assert rows(ri.read_webdataset(tmp_path / "tars").select(**ids)) == SAMPLES
    pack_here(data, tmp_path / "tables", to="parquet", shard_bytes=500)
    assert rows(ri.read_parquet(tmp_path / "tables").select(**ids)) == SAMPLES


@pytest.mark.parametrize("to", ["webdataset", "parquet"])
def test_a_file_that_is_gone_is_not_packed_as_nothing(tmp_path: Path, to: str) -> None:
    """The error names it, whatever is left of its block."""
    (tmp_path / "data").mkdir()
    for i in range(3):
        (tmp_path / "data" / f"{i}.bin").write_bytes(bytes([i]))
    data = ri.read_files(tmp_path / "data")
    packing = packing_of(data, str(tmp_path / "packed"), Layout(to=to, shard_bytes=500))
    (tmp_path / "data" / "1.bin").unlink()
    with pytest.raises(DataError, match="does not exist") as caught:
        packing.pack(packing.shards[0])
    assert (caught.value.shard, caught.value.sample) == (str(tmp_path / "data" / "1.bin"), 1)


def test_data_without_stages_are_packed_as_they_lie(tmp_path: Path) -> None:
    """No picture is decoded, keys stay, and the subset of the description is packed."""
    write_shards(tmp_path / "data", [20, 15])
    data = ri.read_webdataset(tmp_path / "data", block_bytes=8192)
    pack_here(data.skip(5), tmp_path / "out", to="webdataset", shard_bytes=1 << 30)
    (shard,) = (tmp_path / "out").glob("*.tar")
    raw = {"png": bytes, "json": bytes}
    assert samples(ri.read_webdataset(shard).decode(**raw)) == samples(data.decode(**raw))[5:]


@pytest.mark.parametrize("to", ["webdataset", "parquet"])
def test_images_are_made_smaller_or_decoded(to: str, tmp_path: Path) -> None:
    """Larger images shrink to a shorter side, small ones keep their bytes; decoded images are
    arrays.
    """
    (tmp_path / "data").mkdir()
    for number, size in enumerate([(40, 30), (12, 8), (20, 60)]):
        Image.new("RGB", size, (number, 0, 0)).save(tmp_path / "data" / f"{number}.png")
    data, read = ri.read_images(tmp_path / "data"), getattr(ri, f"read_{to}")
    pack_here(data, tmp_path / "small", to=to, shard_bytes=1 << 20, resize=10)
    small = samples(read(tmp_path / "small"))
    images = [
        next(value for value in sample.values() if isinstance(value, np.ndarray))
        for sample in small
    ]
    assert [image.shape for image in images] == [(10, 13, 3), (8, 12, 3), (30, 10, 3)]
    square = data.decode(image=ri.images.Resize((6, 5)))
    pack_here(square, tmp_path / "arrays", to=to, shard_bytes=1 << 20)
    decoded = [value for sample in samples(read(tmp_path / "arrays")) for value in sample.values()]
    assert sum(isinstance(value, np.ndarray) and value.shape == (6, 5, 3) for value in decoded) == 3


@pytest.mark.parametrize("shard_bytes", [7_000, 40_000, 90_000, 1 << 20])
def test_shards_are_of_the_size_asked_for_whatever_blocks_are(
    tmp_path: Path, shard_bytes: int
) -> None:
    """Every sample is packed once and in order; shards cut blocks, also those of a subset."""
    (tmp_path / "data").mkdir()
    for number in range(50):
        (tmp_path / "data" / f"{number:02d}.bin").write_bytes(
            bytes([number]) * (4_000 + 20 * number)
        )
    for taken in (slice(None), slice(3, 44)):
        whole = ri.read_files(tmp_path / "data", block_bytes=100_000)
        data = whole.skip(taken.start).take(taken.stop - taken.start) if taken.start else whole
        out = tmp_path / f"out-{taken.start}"
        packing = pack_here(data, out, to="parquet", shard_bytes=shard_bytes)
        found = samples(ri.read_parquet(out))
        assert [sample["data"][0] for sample in found] == list(range(50))[taken]
        sizes = [
            sum(4_000 + 20 * int(n) for part in shard.parts for n in part.ordinals)
            for shard in packing.shards
        ]
        assert all(abs(size - shard_bytes) < 6_000 for size in sizes[:-1])
        assert len(sizes) in {sum(sizes) // shard_bytes, sum(sizes) // shard_bytes + 1}


@pytest.mark.parametrize(
    ("source", "out", "inside"),
    [
        ("data", "data/out", True),
        ("data", "data", True),
        ("data/*/*.bin", "data/out", False),
        ("data/**", "data/out", True),
        ("data/*/*.tar", "data/out", True),
        ("data/{a,b}", "data/b/out", True),
        ("data/a/1.bin", "data/a/out", False),
        ("data", "data-out", False),
    ],
)
def test_no_data_are_to_hold_what_is_packed_of_them(
    tmp_path: Path, source: str, out: str, inside: bool
) -> None:
    """A folder that is part of the source is refused, also through links."""
    for name in ("a/1.bin", "b/2.bin", "c/3.tar"):
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path)
    data = ri.read_files(tmp_path / "link" / source)
    if not inside:
        pack_here(data, tmp_path / out, to="webdataset", shard_bytes=1000)
        return
    with pytest.raises(ConfigError, match="is part of the data itself"):
        pack_here(data, tmp_path / out, to="webdataset", shard_bytes=1000)


def test_it_goes_on_where_it_ended(tmp_path: Path) -> None:
    """A good shard stays, a damaged one is written again, another packing is refused."""
    write_shards(tmp_path / "data", [20, 15, 7])
    data, out = ri.read_webdataset(tmp_path / "data", block_bytes=4096), tmp_path / "out"
    layout = {"to": "webdataset", "shard_bytes": 4_000}
    pack_here(data, out, **layout)
    first, second, third, *_ = sorted(out.glob("*.tar"))
    whole, before = second.read_bytes(), first.stat().st_mtime_ns
    second.unlink()
    cut = third.read_bytes()
    third.write_bytes(cut[: len(cut) // 2])
    (out / ".part-000001.tar.0.writing").write_bytes(b"left by one that was ended")
    pack_here(data, out, **layout)
    assert first.stat().st_mtime_ns == before
    assert (second.read_bytes(), third.read_bytes()) == (whole, cut)
    assert not list(out.glob(".*"))
    with pytest.raises(ConfigError, match="shard_bytes differs"):
        pack_here(data, out, to="webdataset", shard_bytes=10_000)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a.txt").write_text("a")
    with pytest.raises(ConfigError, match="not empty"):
        pack_here(data, tmp_path / "full", **layout)
    with pytest.raises(ConfigError, match=r"a.txt cannot be created: File exists"):
        pack_here(data, tmp_path / "full" / "a.txt", **layout)


def test_what_is_bad_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    """The error names the sample that cannot be read or does not fit a column."""
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n{"x": "one"}\n')
    data = ri.read_json(tmp_path / "a.jsonl")
    with pytest.raises(DataError, match="'x' has no single type for Parquet"):
        pack_here(data, tmp_path / "out", to="parquet", shard_bytes=1000)
    (tmp_path / "b.jsonl").write_text('{"x": 1}\nno JSON\n')
    with pytest.raises(DataError, match="not readable JSON") as caught:
        pack_here(
            ri.read_json(tmp_path / "b.jsonl"), tmp_path / "tars", to="webdataset", shard_bytes=1000
        )
    assert (caught.value.sample, caught.value.offset) == (1, 9)
    assert not (tmp_path / "tars").exists()


@pytest.mark.parametrize("key", ["a.b", "c/d.e", "c/.e", "c/", "__x__/a"])
def test_keys_that_a_tar_would_change_are_refused(tmp_path: Path, key: str) -> None:
    """A dot in the base name or an empty one is refused; dots in folders and null are fine."""
    good = ["x.y/a", None, "b"]
    for name, keys in (("good", good), ("bad", [*good, key])):
        pq.write_table(
            pa.table({"__key__": keys, "v": list(range(len(keys)))}), tmp_path / f"{name}.parquet"
        )
    pack_here(
        ri.read_parquet(tmp_path / "good.parquet"),
        tmp_path / "out",
        to="webdataset",
        shard_bytes=1 << 20,
    )
    kept = [
        (sample["__key__"], sample["cls"])
        for sample in samples(ri.read_webdataset(tmp_path / "out"))
    ]
    assert kept == [("x.y/a", 0), ("000000000001", 1), ("b", 2)]
    with pytest.raises(
        DataError,
        match=rf"key '{key}' .*would change in a tar, where the first dot of the base name",
    ) as caught:
        pack_here(
            ri.read_parquet(tmp_path / "bad.parquet"),
            tmp_path / "no",
            to="webdataset",
            shard_bytes=1 << 20,
        )
    assert (caught.value.sample, caught.value.key) == (3, key)


def test_a_sample_that_a_tar_holds_nothing_of_is_named(tmp_path: Path) -> None:
    """A sample whose fields are all null is an error."""
    pq.write_table(pa.table({"a": [1, None], "b": ["x", None]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="all fields are null") as caught:
        pack_here(
            ri.read_parquet(tmp_path / "a.parquet"),
            tmp_path / "out",
            to="webdataset",
            shard_bytes=1 << 20,
        )
    assert caught.value.sample == 1


def test_on_ray_data_the_command_packs(cluster: Any, tmp_path: Path) -> None:
    """The missing shards, with counts; an error is one line."""
    write_shards(tmp_path / "data", [20, 15, 7])
    how = {"index": tmp_path / "index.arrow", "block_bytes": 4096}
    data, layout = ri.read_webdataset(tmp_path / "data", **how), Layout("webdataset", 8000)
    begun = packing_of(data, str(tmp_path / "out"), layout)
    begun.pack(begun.shards[0])

    def run(*arguments: str) -> Result:
        options = (
            "--format",
            "webdataset",
            "--option",
            f"index={how['index']}",
            "--option",
            "block_bytes=4096",
        )
        return CliRunner().invoke(
            app, ["pack", str(tmp_path / "data"), str(tmp_path / "out"), *options, *arguments]
        )

    done = run("--shard-bytes", "8000")
    assert done.exit_code == 0, done.output
    count = len(begun.shards)
    assert (
        f"42 samples in {count} shards in {tmp_path / 'out'}, 1 of them written before"
        in done.stdout
    )
    assert len(samples(ri.read_webdataset(tmp_path / "out"))) == 42
    assert "Dataset" not in done.stderr
    assert "allowed: webdataset, parquet" in run("--to", "tfrecord").stderr


def test_members_have_the_extensions_that_loaders_for_webdataset_look_for(tmp_path: Path) -> None:
    """By the type of a field: its name comes first only where two fields have one extension."""
    (tmp_path / "data" / "cat").mkdir(parents=True)
    for number, kind in enumerate(["jpg", "png"]):
        Image.new("RGB", (4, 4)).save(tmp_path / "data" / "cat" / f"{number}.{kind}")
    data = ri.read_images(tmp_path / "data")
    few = data.select(image="image", label="label", name="class").decode(image=bytes)
    for number, (some, members) in enumerate(
        [
            (few, ["0.jpg", "0.cls", "0.txt", "1.png", "1.cls", "1.txt"]),
            (few.select(image="image", a="label", b="label"), ["0.jpg", "0.a.cls", "0.b.cls"]),
        ]
    ):
        out = tmp_path / f"out-{number}"
        pack_here(some.take(len(members) // 3), out, to="webdataset", shard_bytes=1 << 20)
        with tarfile.open(out / "part-000000.tar") as tar:
            names = [f"{int(name[:12])}{name[12:]}" for name in tar.getnames()]
        assert names == members
    with ri.read_webdataset(tmp_path / "out-0").select(y="cls").batch(2).loader(workers=0) as read:
        assert next(iter(read))["y"].tolist() == [0, 0]


@pytest.mark.parametrize(
    "section", ["pack: {length: 8}", "epoch: {passes: 2}", "weighted: {by: x}"]
)
def test_a_section_that_makes_other_samples_is_refused(tmp_path: Path, section: str) -> None:
    """The error names it, before anything is read."""
    file = tmp_path / "c.yaml"
    file.write_text(f"read: {{format: json, urls: nowhere}}\n{section}\nbatch: {{size: 2}}\n")
    done = CliRunner().invoke(app, ["pack", str(file), str(tmp_path / "out")])
    assert done.exit_code == 1
    assert f"the section {section.partition(':')[0]!r} cannot be used" in done.stderr


def test_sections_that_say_nothing_about_shards_are_named(tmp_path: Path) -> None:
    """A configuration for training has them; their names are printed with the result."""
    file = tmp_path / "c.yaml"
    file.write_text(
        "read: {format: json, urls: a}\nlength: x\nshuffle: {}\nbatch: {size: 2}\n"
        "loader: {workers: 0}\njob: {rate: 1}\n"
    )
    config = load_config(file)
    unused = sections_without_use(description_of(config.dataset()), config)
    assert unused == ["length", "shuffle", "batch", "loader", "job"]


@pytest.mark.parametrize("to", ["webdataset", "parquet"])
def test_any_storage_can_be_the_target(to: str, tmp_path: Path) -> None:
    """A second run writes nothing again, a shard that is damaged is written anew, and another
    packing is refused.
    """
    file = tmp_path / "a.jsonl"
    file.write_text("".join(f'{{"x": {i}, "t": "{"a" * 50}"}}\n' for i in range(40)))
    data, url = ri.read_json(file, block_bytes=400), f"memory://packed-{to}"
    layout = Layout(to=to, shard_bytes=1000)
    packing = packing_of(data, url, layout)
    assert len(packing.shards) > 1
    assert all(packing.pack(shard).is_new for shard in packing.shards)
    again = packing_of(data, url, layout)
    assert not any(again.pack(shard).is_new for shard in again.shards)
    files = fsspec.filesystem("memory")
    names = sorted(str(one).rpartition("/")[2] for one in files.ls(f"/packed-{to}", detail=False))
    assert names == ["packing.json", *(shard.name for shard in packing.shards)]
    files.pipe_file(f"/packed-{to}/{packing.shards[0].name}", b"damaged")
    assert [again.pack(shard).is_new for shard in again.shards[:2]] == [True, False]
    x = "cls" if to == "webdataset" else "x"
    with getattr(ri, f"read_{to}")(url).select(x=x).batch(40).loader(workers=0) as loader:
        assert next(iter(loader))["x"].tolist() == list(range(40))
    with pytest.raises(ConfigError, match="holds shards of another packing: shard_bytes differs"):
        packing_of(data, url, Layout(to=to, shard_bytes=2000))


def test_s3_can_be_the_target(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the credentials and the address of the environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.options["key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.options["secret"])
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.options["endpoint_url"])
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    s3.put("packs", "elsewhere", b"")
    file = tmp_path / "a.jsonl"
    file.write_text("".join(f'{{"x": {i}}}\n' for i in range(40)))
    packing = packing_of(ri.read_json(file), "s3://packs/out", Layout("webdataset", 100))
    assert len(packing.shards) > 1
    assert all(packing.pack(shard).is_new for shard in packing.shards)
    assert not any(packing.pack(shard).is_new for shard in packing.shards)
    with ri.read_webdataset("s3://packs/out").batch(40).loader(workers=0) as loader:
        assert next(iter(loader))["cls"].tolist() == list(range(40))
