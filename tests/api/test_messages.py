"""Errors that users meet first: the reason comes first, is short, and says what works."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import rayingest as ri


def first_batch(data: Any) -> Any:
    with data.batch(4).loader(workers=0) as loader:
        return next(iter(loader))


def fails(data: Any, kind: type[Exception] = ri.IngestError) -> str:
    with pytest.raises(kind) as caught:
        first_batch(data)
    return str(caught.value)


@pytest.fixture
def rows(tmp_path: Path) -> str:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"x": i}) + "\n" for i in range(8)))
    return str(file)


@pytest.mark.parametrize("verb", ["select", "where"])
def test_a_mistyped_field_of_many_images_is_named_at_once(tmp_path: Path, verb: str) -> None:
    """A shard of 300 files does not put their names before the reason, nor all of them behind."""
    for i in range(300):
        Image.new("RGB", (2, 2)).save(tmp_path / f"{i:04d}.png")
    data = ri.read_images(str(tmp_path))
    text = fails(data.select(a="lable") if verb == "select" else data.where("lable == 3"))
    assert text.startswith("there is no column 'lable'; there are 'image',")
    assert "did you mean 'label'?" in text
    assert len(text) < 500


def test_many_fields_are_not_all_listed(tmp_path: Path) -> None:
    """Similar names come first, then the number of all."""
    file = tmp_path / "wide.jsonl"
    file.write_text((json.dumps({f"column_{i}": 1 for i in range(1000)}) + "\n") * 4)
    text = fails(ri.read_json(str(file)).select(a="colum_7"))
    assert "there are 'column_7'," in text
    assert "(1,000 in all); did you mean 'column_7'?" in text
    assert len(text) < 600


@pytest.mark.parametrize(
    ("shape", "pad"),
    [
        (lambda x: (x % 3 + 1, 2), "ri.Pad()"),
        (lambda x: (x % 3 + 1, x % 2 + 1), "ri.Pad(axes=2)"),
        (lambda x: (2, x % 3 + 1, 4), "ri.Pad(axes=2)"),
    ],
)
def test_ragged_arrays_name_the_padding(rows: str, shape: Any, pad: str) -> None:
    """With as many axes as differ."""
    data = ri.read_json(rows).map(lambda sample: {"m": np.zeros(shape(sample["x"]))})
    with pytest.raises(ri.IngestError) as caught, data.batch(4).loader(workers=0) as loader:
        list(loader)
    assert f"batch(pad={{'m': {pad}}})" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("x = 3", "write == for ="),
        ("x > 3 AND x < 5", "write and, or, not, in as Python does"),
        ("x IS NOT NULL", "write 'x is not None' for IS NOT NULL"),
        ("x BETWEEN 1 AND 3", "write '1 <= x <= 3'"),
        ("name LIKE 'a%'", "use .filter(fn) for LIKE"),
        ("x <> 3", "write != for <>"),
        ("x > 1 && x < 3", "write and for &&"),
        ("SELECT x", "write the condition alone"),
        ("x ==", 'write a condition of Python, as in "x > 3'),
    ],
)
def test_sql_in_where_is_answered_with_its_own_language(text: str, advice: str) -> None:
    """The error has the reason and the other spelling."""
    with pytest.raises(ri.ConfigError, match="is no expression of Python") as caught:
        ri.read_json("a.jsonl").where(text)
    assert advice in str(caught.value)


@pytest.mark.parametrize("key", ["map", "filter", "length", "decode: {x: ", "weighted: {by: "])
def test_a_lambda_in_a_configuration_is_called_code(tmp_path: Path, key: str) -> None:
    """The error says where to put it."""
    place = key if ":" in key else f"{key}: "
    end = "}" if "{" in key else ""
    file = tmp_path / "c.yaml"
    file.write_text(
        f'read: {{format: json, urls: a}}\n{place}"lambda s: s"{end}\nbatch: {{size: 3}}\n'
    )
    with pytest.raises(ri.ConfigError, match=r"'lambda s: s' is code.*write module:name"):
        ri.load_config(file)


@pytest.mark.parametrize(
    ("module", "url", "command"),
    [
        ("s3fs", "s3://bucket/a.jsonl", "pip install 'rayingest[s3]'"),
        ("gcsfs", "gs://bucket/a.jsonl", "pip install gcsfs"),
        ("adlfs", "abfs://bucket/a.jsonl", "pip install adlfs"),
    ],
)
def test_a_missing_library_of_a_storage_is_named_with_its_command(
    module: str, url: str, command: str
) -> None:
    """In a process that cannot import it."""
    code = (
        f"import sys; sys.modules[{module!r}] = None\nimport rayingest as ri\n"
        f"ri.read_json({url!r}).batch(4).loader(workers=0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"needs a library that is not installed: {command}" in done.stderr.splitlines()[-1]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    """Names of a folder far above say nothing."""
    (tmp_path / "other").mkdir()
    with pytest.raises(ri.ConfigError) as caught:
        first_batch(ri.read_json(f"{tmp_path}/train/2026/*.jsonl"))
    assert str(caught.value).endswith(f"there is no folder '{tmp_path}/train/2026'")
    (tmp_path / "train").mkdir()
    with pytest.raises(ri.ConfigError, match=r"names nearby: .*train"):
        first_batch(ri.read_json(f"{tmp_path}/trian/*.jsonl"))


def test_files_of_a_key_that_lie_apart_are_the_cause(tmp_path: Path) -> None:
    """A tar that was not sorted by name."""
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name in ("a.txt", "b.txt", "a.cls", "b.cls"):
            info = tarfile.TarInfo(name)
            info.size = 1
            tar.addfile(info, io.BytesIO(b"1"))
    text = fails(ri.read_webdataset(str(tmp_path / "a.tar")))
    assert "the files of key 'a' are not next to each other in the tar" in text


def test_missing_credentials_are_no_failure_to_retry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error comes after one try, and names the ways to give them."""
    pytest.importorskip("s3fs")
    from botocore.exceptions import NoCredentialsError

    from rayingest.storage.files import Storage

    calls = []

    def operation() -> None:
        calls.append(1)
        raise NoCredentialsError

    with pytest.raises(ri.ConfigError, match=r"no credentials to read s3://b/a: .*'anon': True"):
        Storage().call("s3://b/a", operation)
    assert len(calls) == 1


def test_decoded_samples_are_counted_without_ray(rows: str) -> None:
    """`stats()` has the same count as on Ray."""
    with ri.read_json(rows).batch(4).loader(workers=0, epochs=1) as loader:
        list(loader)
        assert loader.stats()["samples_decoded"] == 8


@pytest.mark.source
def test_a_mistyped_reader_is_a_type_error(tmp_path: Path) -> None:
    """A type checker sees the names that there are, and no others."""
    pytest.importorskip("mypy")
    file = tmp_path / "user.py"
    file.write_text('import rayingest as ri\n\nri.read_json("a")\nri.read_jsonl("a")\n')
    options = ["--cache-dir", str(tmp_path), "--follow-imports=silent", "--no-error-summary"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, str(file)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(ri.__file__).parents[1],
    )
    errors = done.stdout.splitlines()
    assert len(errors) == 1, done.stdout + done.stderr
    assert 'user.py:4: error: Module has no attribute "read_jsonl"' in errors[0]


def test_no_more_decoders_are_advised_than_there_are_cpus(
    rows: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also without Ray, where no cluster counts them."""
    monkeypatch.setattr("os.cpu_count", lambda: 2)

    def work(sample: dict[str, Any]) -> dict[str, Any]:
        end = time.perf_counter() + 0.02
        while time.perf_counter() < end:
            pass
        return sample

    with ri.read_json(rows).map(work).batch(2).loader(workers=0, epochs=1) as loader:
        list(loader)
        stats = loader.stats()
    assert stats["bottleneck"] == "decode"
    assert stats["bottleneck_settings"] == {"workers": 2}
