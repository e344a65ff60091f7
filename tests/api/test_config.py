"""Configurations: what they stand for in the API, and that every mistake in one is told with its
place.
"""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rayingest as ri
from rayingest.api.config.sections import BATCH, LOADER, READS, SHUFFLE, Section
from rayingest.api.data import description_of
from rayingest.api.readers import READERS
from rayingest.transforms.stages import Map

ROOT = Path(__file__).parents[2]
LEAST = "read: {format: json, urls: a.jsonl}\nbatch: {size: 4}\n"

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Return a function that writes a configuration into the current folder."""
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> Path:
        path = Path("c.yaml")
        path.write_text(text)
        return path

    return write


def refused(path: Path) -> str:
    with pytest.raises(ri.ConfigError) as caught:
        ri.load_config(path)
    return str(caught.value)


class Scale:
    """A user's class with an argument."""

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        return {name: value * self.factor for name, value in sample.items()}


def jitter(sample: dict[str, Any], rng: np.random.Generator, amount: float = 1.0) -> dict[str, Any]:
    """Take random numbers and an argument, as a user's function may."""
    return {name: value + amount * rng.random() for name, value in sample.items()}


def double(columns: dict[str, Any]) -> dict[str, Any]:
    """Take columns, as a function for `map_batches` does."""
    return {name: [2 * value for value in values] for name, values in columns.items()}


def as_lists(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Put samples together, as a collate function does."""
    return {"all": samples}


def three(a: Any, b: Any, c: Any) -> None:
    """Fail when called with a sample."""


def test_a_configuration_equals_the_calls_of_the_api(write: Write) -> None:
    """Each section does the same as the call of its name, defaults included."""
    path = write(
        """
        read:
          {format: webdataset, urls: "data/*.tar", index: idx/, block_bytes: 1_000, strict: false,
           max_expansion: 9}
        select: {image: png, label: cls}
        decode:
          image: [{Decode: L}, {Resize: [6, 8]}, {RandomResizedCrop: {size: 4, scale: [0.5, 1.0]}}]
          label: int
        map: [tests.api.test_config:jitter, tests.api.test_config:Scale]
        map_batches: tests.api.test_config:double
        shuffle: {seed: 3, window: 64}
        batch: {size: 8, partial: pad, collate: tests.api.test_config:as_lists}
        loader: {workers: 0, epochs: 2, start_timeout: 5, max_errors: 7}
        job: {anything: [1, 2]}
        """
    )
    config = ri.load_config(path)
    crop = ri.images.RandomResizedCrop(size=4, scale=(0.5, 1.0))
    data = ri.read_webdataset(
        "data/*.tar", index="idx/", block_bytes=1000, strict=False, max_expansion=9
    )
    data = data.select(image="png", label="cls")
    data = data.decode(
        image=ri.images.Compose(ri.images.Decode("L"), ri.images.Resize((6, 8)), crop), label=int
    )
    data = data.map(jitter).map(Scale).map_batches(double)
    data = data.shuffle(seed=3, window=64).batch(8, partial="pad", collate=as_lists)
    assert config.dataset() == data
    assert config.loader_options() == {
        "workers": 0,
        "epochs": 2,
        "start_timeout": 5,
        "max_errors": 7,
    }
    assert config.job == {"anything": [1, 2]}


def test_a_mixture_has_a_section_for_each_source(write: Write) -> None:
    """A source is written as a configuration is; it may be a mixture."""
    config = ri.load_config(
        write(
            """
            mix:
              sources:
                web: {read: {format: json, urls: a.jsonl}, select: {x: y}, take: 9}
                all:
                  mix:
                    sources: {b: {read: {format: parquet, urls: b.parquet}, shuffle: {seed: 2}}}
              weights: {0: {web: 1, all: 0.5}, 100: {web: 1, all: 1}}
              until: all
            map: tests.api.test_config:jitter
            shuffle: {seed: 3}
            batch: {size: 4}
            """
        )
    )
    web = ri.read_json("a.jsonl").select(x="y").take(9)
    weights = {0: {"web": 1, "all": 0.5}, 100: {"web": 1, "all": 1}}
    mixture = ri.mix(
        {"web": web, "all": ri.mix({"b": ri.read_parquet("b.parquet").shuffle(seed=2)})},
        weights=weights,
        until="all",
    )
    assert config.dataset() == mixture.map(jitter).shuffle(seed=3).batch(4)


def test_weights_are_fields_or_functions(write: Write) -> None:
    """Both forms of `weighted` can be written."""
    data = ri.load_config(write(LEAST + "weighted: {by: quality, samples: 9}")).dataset()
    first = description_of(data).weighting
    assert first is not None
    assert (first.by.name, first.draws, first.balanced) == ("weighted(quality)", 9, False)
    text = LEAST + "weighted: {balance: tests.api.test_config:double}"
    second = description_of(ri.load_config(write(text)).dataset()).weighting
    assert second is not None
    assert (second.by.fn.of, second.balanced) == (double, True)
    assert "weighted: samples are drawn by weights" in refused(
        write(LEAST + "weighted: {samples: 9}")
    )


def test_mistakes_in_a_source_are_reported_with_their_lines(write: Write) -> None:
    """They are reported with all other mistakes."""
    said = refused(
        write(
            """
            mix:
              sources:
                web: {read: {format: jsn, urls: a}, where: "x +"}
                code: {read: {format: json, urls: a}, batch: {size: 3}, take: 0}
              until: last
            read: {format: json, urls: a}
            batch: {size: 4}
            """
        )
    )
    for line in (
        "the section 'read' cannot be used with 'mix': leave one of them out",
        "c.yaml:4: mix.sources.web.read.format: 'jsn' is unknown; formats: ",
        "c.yaml:5: mix.sources.code.batch: there is no such key; allowed: read, mix, ",
        "c.yaml:5: mix.sources.code.take: count=0: a whole number",
        "c.yaml:6: mix.until: 'last': 'first', 'all', or a number of samples",
    ):
        assert line in said
    assert "mix.sources: 3 is not a mapping of sources" in refused(
        write("mix: {sources: 3}\nbatch: {size: 4}")
    )
    assert "mix: weights: the weight of 'a' is missing" in refused(
        write(
            "mix: {sources: {a: {read: {format: json, urls: a}}}, weights: {b: 1}}\n"
            "batch: {size: 4}"
        )
    )


def test_the_least_configuration_leaves_all_defaults_to_the_api(write: Write) -> None:
    """Only keys in the file are passed on; an empty `shuffle` still shuffles."""
    config = ri.load_config(write(LEAST))
    assert config.dataset() == ri.read_json("a.jsonl").batch(4)
    assert config.loader_options() == config.job == {}
    assert ri.load_config(write(LEAST + "shuffle:\n")).dataset() == ri.read_json(
        "a.jsonl"
    ).shuffle().batch(4)


@pytest.mark.parametrize(
    ("section", "call", "apart"),
    [
        *((READS[name], reader, set()) for name, reader in READERS.items()),
        (SHUFFLE, ri.Dataset.shuffle, {"self"}),
        (BATCH, ri.Dataset.batch, {"self"}),
        (LOADER, ri.Dataset.loader, {"self", "rank", "world_size", "pool"}),
    ],
    ids=[*READERS, "shuffle", "batch", "loader"],
)
def test_every_option_of_a_call_can_be_written(
    section: type[Section], call: Any, apart: set[str]
) -> None:
    """The keys of a section are the parameters of its call, with the same defaults."""
    parameters = {n: p for n, p in inspect.signature(call).parameters.items() if n not in apart}
    assert set(section.model_fields) == set(parameters)
    for name, parameter in parameters.items():
        if parameter.default is not parameter.empty:
            assert section.model_fields[name].default == parameter.default, name


def test_relative_paths_start_at_the_folder_of_load_config(
    write: Write, tmp_path: Path, monkeypatch: Any
) -> None:
    """Data still name their files in another folder, such as that of Ray Train's workers."""
    config = ri.load_config(write(LEAST + "loader: {quarantine: bad}\n"))
    monkeypatch.chdir(ROOT)
    assert description_of(config.dataset()).source.urls == f"{tmp_path}/a.jsonl"
    assert config.loader_options() == {"quarantine": f"{tmp_path}/bad"}


def test_functions_can_be_given_arguments(write: Write) -> None:
    """A class gets them once, a function with every call; both can be pickled."""
    text = (
        LEAST + "map: [{tests.api.test_config:Scale: {factor: 3.0}}, "
        "{tests.api.test_config:jitter: {amount: 0}}]\n"
    )
    dataset = pickle.loads(pickle.dumps(ri.load_config(write(text)).dataset()))
    scale, jittered = (stage.fn for stage in description_of(dataset).stages)
    assert scale({"x": 2}) == {"x": 6.0}
    assert jittered({"x": 2}, np.random.default_rng(0)) == {"x": 2.0}
    assert jittered.__qualname__ == "jitter"


def test_a_module_in_the_current_folder_is_found(write: Write) -> None:
    """The current folder is searched for modules."""
    Path("found_here.py").write_text("def f(sample):\n    return sample\n")
    dataset = ri.load_config(write(LEAST + "map: found_here:f\n")).dataset()
    (stage,) = description_of(dataset).stages
    assert isinstance(stage, Map)
    assert stage.fn({"x": 1}) == {"x": 1}


def test_images_are_normalised_on_the_device_where_asked_for(write: Write) -> None:
    """`after_copy` names functions by field."""
    config = ri.load_config(
        write(LEAST + "loader: {after_copy: {image: {Normalize: {mean: [0.5], std: [0.2]}}}}\n")
    )
    assert config.loader_options() == {"after_copy": {"image": ri.images.Normalize([0.5], [0.2])}}


@pytest.mark.parametrize(
    ("line", "place", "words"),
    [
        (
            "shufle: {seed: 3}",
            "c.yaml:3: shufle",
            ["there is no such key", "map_batches", "did you mean 'shuffle'?"],
        ),
        (
            "shuffle: {sed: 3}",
            "c.yaml:3: shuffle.sed",
            ["allowed: seed, window, lanes", "did you mean 'seed'?"],
        ),
        ("shuffle: {seed: '3'}", "c.yaml:3: shuffle.seed", ["'3': a whole number"]),
        ("shuffle: {seed: true}", "c.yaml:3: shuffle.seed", ["True: a whole number"]),
        ("shuffle: {window: 0}", "c.yaml:3: shuffle.window", ["0: a whole number, 1 or more"]),
        (
            "shuffle: 17",
            "c.yaml:3: shuffle",
            ["17 is not a mapping of keys: seed, window, lanes"],
        ),
        ("loader: {worker: 3}", "c.yaml:3: loader.worker", ["did you mean 'workers'?"]),
        ("loader: {on_error: skp}", "c.yaml:3: loader.on_error", ["'raise' or 'skip'"]),
        ("loader: {max_errors: 1.5}", "c.yaml:3: loader.max_errors", ["1.5: "]),
        (
            "loader: {device: gpu}",
            "c.yaml:3: loader.device",
            ["'gpu': 'cpu', 'cuda' or 'cuda:<index>'"],
        ),
        ("loader: {rank: 0}", "c.yaml:3: loader.rank", ["there is no such key"]),
        ("loader: {after_copy: 3}", "c.yaml:3: loader.after_copy", ["is not a mapping of fields"]),
        ("select: {}", "c.yaml:3: select", ["is not a mapping of fields"]),
        ("select: {image: 3}", "c.yaml:3: select", ["image=3: the name of a field"]),
        (
            "decode: {x: Resise}",
            "c.yaml:3: decode.x",
            ["CenterCrop", "package.module:name", "did you mean 'Resize'?"],
        ),
        ("decode: {x: Resize}", "c.yaml:3: decode.x", ["missing a required argument: 'size'"]),
        (
            "decode: {x: {Resize: {sise: 3}}}",
            "c.yaml:3: decode.x.Resize.sise",
            ["did you mean 'size'?"],
        ),
        ("decode: {x: {Resize: -3}}", "c.yaml:3: decode.x.Resize", ["positive integer"]),
        (
            "decode: {x: [{Resize: 3}, str]}",
            "c.yaml:3: decode.x",
            ["Compose takes the transforms of ri.images"],
        ),
        ("decode: {x: Normalize}", "c.yaml:3: decode.x", ["'Normalize' is unknown"]),
        ("decode: {x: {a: 1, b: 2}}", "c.yaml:3: decode.x", ["does not name a function"]),
        ("map: [str]", "c.yaml:3: map[0]", ["'str' is unknown", "package.module:name"]),
        (
            "map: no_such_module:f",
            "c.yaml:3: map",
            ["cannot import 'no_such_module'", "ModuleNotFoundError"],
        ),
        (
            "map: tests.api.test_config:jiter",
            "c.yaml:3: map",
            ["has no 'jiter'", "did you mean 'jitter'?"],
        ),
        ("map: tests.api.test_config:ROOT", "c.yaml:3: map", ["is not callable"]),
        (
            "map: {tests.api.test_config:jitter: {amont: 1}}",
            "c.yaml:3: map.tests",
            ["did you mean 'amount'?"],
        ),
        ("map: {tests.api.test_config:jitter: 3}", "c.yaml:3: map.tests", ["written as a mapping"]),
        (
            "map: tests.api.test_config:three",
            "c.yaml:3: map",
            ["map three", "this one needs a, b, c"],
        ),
        ("job: 3", "c.yaml:3: job", ["own keys"]),
        ("batch: {size: 8}", "c.yaml:2: batch", ["the key is given twice, again in line 3"]),
    ],
)
def test_a_mistake_is_reported_with_its_place_and_the_allowed_values(
    write: Write, line: str, place: str, words: list[str]
) -> None:
    """The message has the place, the value, the allowed values, and a similar name."""
    told = refused(write(LEAST + line))
    assert told.startswith(place)
    assert [word for word in words if word not in told] == []
    assert "\n" not in told


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "read: {format: json, urls: [a, b]}",
            "c.yaml:1: the section 'batch' is missing",
        ),
        (
            "read: {format: json}\nbatch: {size: 4}",
            "c.yaml:1: read.urls: the key is missing",
        ),
        (
            "read: {urls: a}\nbatch: {size: 4}",
            "read.format: is missing; formats: webdataset, parquet, json",
        ),
        ("read: {format: webdatset, urls: a}\nbatch: {size: 4}", "did you mean 'webdataset'?"),
        (
            "read: {format: parquet, urls: a, strict: true}\nbatch: {size: 4}",
            "read.strict: there is no such key",
        ),
        ("read: {format: json, urls: 3}\nbatch: {size: 4}", "read.urls: 3: a path, folder, glob"),
        (
            "read: {format: json, urls: a}\nbatch: {size: 4, partial: pud}",
            "'drop', 'pad' or 'short'",
        ),
        (
            "read: {format: json, urls: a}\nbatch: {size: abc}",
            "c.yaml:2: batch.size: 'abc': a whole number, 1 or more",
        ),
        (
            "read: {format: json, urls: a}\nbatch: {size: 4, collate: os:sep}",
            "batch.collate: 'os:sep' is a str",
        ),
        ("- read", "c.yaml must be a mapping of sections (read, batch, ...), not list"),
        ("", "c.yaml must be a mapping of sections"),
        (
            "read: [hunter2",
            "c.yaml is not YAML: expected ',' or ']', but got '<stream end>', line 1, column 15",
        ),
    ],
)
def test_a_file_that_lacks_something_is_refused(write: Write, text: str, words: str) -> None:
    """Sections and keys may be missing, keys may be of another format, the file of another kind."""
    assert words in refused(write(text))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """The error names the file, in one line."""
    assert "No such file" in refused(tmp_path / "none.yaml")


def test_all_mistakes_are_reported_at_once(write: Write) -> None:
    """They come in the order of the file."""
    told = refused(
        write(
            "raed: 1\nread: {format: json}\nbatch: {siz: 3}\n"
            "loader:\n  prefetch: -1\n  workers: x\n"
        )
    )
    lines = told.splitlines()
    assert lines[0] == "c.yaml has 5 mistakes:"
    assert [line.split(": ")[1] for line in lines[1:]] == [
        "raed",
        "read.urls",
        "batch.siz",
        "loader.prefetch",
        "loader.workers",
    ]


def test_an_anchor_inside_of_itself_is_refused_like_any_other_value(write: Write) -> None:
    """The reader ends on a file that contains itself."""
    assert "select: " in refused(write(LEAST + "select: &a [*a]\n"))


def test_a_job_checks_its_own_section_in_the_same_way(write: Write) -> None:
    """`job_as` returns the job's model, or names the line."""

    class Inner(Section):
        steps: int

    class Settings(Section):
        rate: float
        inner: Inner

    config = ri.load_config(write(LEAST + "job:\n  rate: 1\n  inner: {steps: 3}\n"))
    assert config.job_as(Settings) == Settings(rate=1.0, inner=Inner(steps=3))
    config = ri.load_config(write(LEAST + "job:\n  rate: 1\n  inner: {step: 3, steps: 1}\n"))
    with pytest.raises(
        ri.ConfigError, match=r"c.yaml:5: job.inner.step: .*allowed: steps; did you mean 'steps'"
    ):
        config.job_as(Settings)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.name
)
def test_the_example_configurations_can_be_loaded(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file in `configs/` loads from the project's folder."""
    monkeypatch.chdir(ROOT)
    ri.load_config(path)


def is_low(sample: dict[str, Any]) -> bool:
    """Choose samples, as a user's filter does."""
    return bool(sample["n"] < 9)


def test_parts_of_the_data_and_their_lengths(write: Write) -> None:
    """The verbs run in the order length, where, filter, skip, take; mistakes have their lines."""
    path = write(
        "read: {format: json, urls: a.jsonl}\nlength: n\nwhere: n > 1\n"
        "filter: tests.api.test_config:is_low\nskip: 2\n"
        "take: 7\nepoch: {passes: 2}\nshuffle: {}\n"
        "batch: {size: 4, bucketed: true, pad: {x: {multiple_of: 8}}}\n"
    )
    made = ri.load_config(path).dataset()
    data = (
        ri.read_json("a.jsonl")
        .length("n")
        .where("n > 1")
        .filter(is_low)
        .skip(2)
        .take(7)
        .epoch(passes=2)
    )
    assert made == data.shuffle().batch(4, bucketed=True, pad={"x": ri.Pad(multiple_of=8)})
    packed = ri.load_config(write(LEAST + "pack: {length: 16, field: n, cut: false}\n")).dataset()
    assert packed == ri.read_json("a.jsonl").pack(16, "n", cut=False).batch(4)
    said = refused(write(LEAST + "where: n ** 2 > 1\ntake: 0\nepoch: {passes: 1, samples: 8}\n"))
    assert all(
        word in said
        for word in ("c.yaml:3: where", "'**' is not", "c.yaml:4: take", "c.yaml:5: epoch")
    )
