"""A YAML file in the API's own words, as a `Dataset` with the options of its loader.

Owns the meaning of the sections; every mistake in the file is found before anything is read, and all are told at once.
The stages are applied in the order select, decode, map, map_batches, wherever they stand in the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rayingest.api.config.document import Loc, Mistakes, read_document, unknown_key
from rayingest.api.config.functions import AFTER_COPY, resolve, resolve_decoder
from rayingest.api.config.sections import (
    BATCH,
    EPOCH,
    LOADER,
    MIX,
    PACK,
    READS,
    SHUFFLE,
    WEIGHTED,
    AnySection,
    Section,
    check_section,
)
from rayingest.api.dataset import Dataset
from rayingest.api.mixture import Mixture, mix
from rayingest.api.readers import READERS
from rayingest.errors import ConfigError
from rayingest.options.checked import nearest

__all__ = ["Config", "Section", "load_config"]

AnyData = Dataset | Mixture

SECTIONS = (
    "read",
    "mix",
    "select",
    "decode",
    "map",
    "map_batches",
    "length",
    "where",
    "filter",
    "skip",
    "take",
    "weighted",
    "epoch",
    "pack",
    "shuffle",
    "batch",
    "loader",
    "job",
)
_OF_MIXTURES = ("weighted", "epoch", "pack", "batch", "loader", "job")
"""Sections that the sources of a mixture do not have."""


@dataclass(frozen=True)
class Config:
    """What a configuration file says. `job` is the section of the job's own settings, as it stands in the file."""

    path: str
    job: Mapping[str, Any]
    _dataset: AnyData
    _options: Mapping[str, Any]
    _lines: Mapping[Loc, int] = field(repr=False)

    def dataset(self) -> AnyData:
        """The data, what is done with it, and its order and batches."""
        return self._dataset

    def loader_options(self) -> dict[str, Any]:
        """The arguments for `dataset().loader(...)` that the file gives."""
        return dict(self._options)

    def job_as(self, model: type[AnySection]) -> AnySection:
        """The section `job` as the job's own model, a `Section`. ConfigError names each mistake and its line."""
        mistakes = Mistakes(self.path, dict(self._lines))
        section = check_section(model, dict(self.job), ("job",), mistakes)
        mistakes.refuse()
        assert section is not None
        return section


def load_config(path: str | os.PathLike[str]) -> Config:
    """The configuration in a YAML file; relative paths in it are relative to the current folder, now.

    Functions are imported (the current folder is added to where Python looks); nothing is read of the data. ConfigError
    lists every mistake with its line.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise ConfigError(f"load_config takes the path of a YAML file, not a {type(path).__name__}")
    document = read_document(Path(path))
    data, mistakes = document.data, document.mistakes
    _check_keys(data, SECTIONS, mistakes)
    if "batch" not in data:
        mistakes.add((), "the section 'batch' is needed and missing")
    dataset = _dataset(data, mistakes)
    options = _options(data.get("loader"), mistakes)
    job = data.get("job") or {}
    if not isinstance(job, dict):
        mistakes.add(("job",), f"{job!r} stands where the job's own keys are needed")
    mistakes.refuse()
    assert dataset is not None
    return Config(str(path), job, dataset, options, dict(mistakes.lines))


def _check_keys(data: Mapping[str, Any], allowed: Sequence[str], mistakes: Mistakes) -> None:
    for key in data:
        if key not in allowed:
            mistakes.add((str(key),), unknown_key(str(key), allowed))
    if ("read" in data) == ("mix" in data):
        words = (
            "'read' beside 'mix': leave one out"
            if "read" in data
            else "'read' is needed and missing (or 'mix')"
        )
        mistakes.add((), f"the section {words}")


def _dataset(data: Mapping[str, Any], mistakes: Mistakes) -> AnyData | None:
    """The description; None where no data can be named."""
    dataset = _mix(data["mix"], mistakes) if "mix" in data else None
    if "read" in data:
        dataset = _read(data["read"], mistakes)
    for stage, arguments in _stages(data, mistakes):
        if dataset is not None:
            dataset = _added(dataset, stage, arguments, (stage,), mistakes)
    for method in ("length", "where", "filter", "skip", "take"):
        if method in data:
            value = data[method]
            if method == "filter" or (method == "length" and ":" in str(value)):
                value = resolve(value, {}, (method,), mistakes)
            if dataset is not None and value is not None:
                dataset = _added(dataset, method, value, (method,), mistakes)
    for method, model in (
        ("weighted", WEIGHTED),
        ("epoch", EPOCH),
        ("pack", PACK),
        ("shuffle", SHUFFLE),
    ):
        section = _weights(data.get(method), mistakes) if method == "weighted" else data.get(method)
        options = check_section(model, section, (method,), mistakes) if method in data else None
        if dataset is not None and options is not None:
            dataset = _added(dataset, method, options.given(), (method,), mistakes)
    if "batch" in data:
        section = _resolved(
            data["batch"], "collate", lambda spec, loc: resolve(spec, {}, loc, mistakes), ("batch",)
        )
        batch = check_section(BATCH, section, ("batch",), mistakes)
        if dataset is not None and batch is not None:
            dataset = _added(dataset, "batch", batch.given(), ("batch",), mistakes)
    return dataset


def _weights(section: Any, mistakes: Mistakes) -> Any:
    """The section `weighted` with functions for their names; other words are names of fields."""
    for key in ("by", "balance") if isinstance(section, dict) else ():
        if ":" in str(section.get(key)):
            section = _resolved(
                section, key, lambda spec, loc: resolve(spec, {}, loc, mistakes), ("weighted",)
            )
    return section


def _read(section: Any, mistakes: Mistakes) -> AnyData | None:
    keys = dict(section) if isinstance(section, dict) else {}
    name = keys.pop("format", None)
    if not isinstance(name, str) or name not in READS:
        said = "is missing" if name is None else f"{name!r} is not known"
        mistakes.add(
            ("read", "format"), f"{said}; formats: {', '.join(READS)}{nearest(str(name), READS)}"
        )
        return None
    read = check_section(READS[name], keys, ("read",), mistakes)
    if read is None:
        return None
    try:
        return READERS[name](**read.given())
    except ConfigError as error:
        mistakes.add(("read",), str(error))
        return None


def _mix(section: Any, mistakes: Mistakes) -> AnyData | None:
    keys = dict(section) if isinstance(section, dict) else {}
    sources = _sources(keys.pop("sources", None), mistakes)
    options = check_section(MIX, keys, ("mix",), mistakes)
    if options is None or None in sources.values():
        return None
    try:
        return mix(sources, **options.given())
    except ConfigError as error:
        mistakes.add(("mix",), str(error))
        return None


def _sources(section: Any, mistakes: Mistakes) -> dict[str, AnyData | None]:
    """The data sets to mix; None for each that cannot be named."""
    loc: Loc = ("mix", "sources")
    if not isinstance(section, dict) or not all(
        isinstance(source, dict) for source in section.values()
    ):
        mistakes.add(loc, f"{section!r} stands where sources are needed, as in web: {{read: ...}}")
        return {"": None}
    made = {}
    for name, source in section.items():
        inside = mistakes.under((*loc, str(name)))
        _check_keys(source, [key for key in SECTIONS if key not in _OF_MIXTURES], inside)
        made[str(name)] = _dataset(source, inside)
    return made


def _stages(data: Mapping[str, Any], mistakes: Mistakes) -> list[tuple[str, Any]]:
    """Method names and arguments, in the order in which they are applied."""
    stages: list[tuple[str, Any]] = []
    for name in ("select", "decode"):
        section = data.get(name)
        if name not in data:
            continue
        if not isinstance(section, dict) or not section:
            mistakes.add((name,), f"{section!r} stands where fields are needed, as in image: ...")
            continue
        if name == "decode":
            functions = {
                key: resolve_decoder(spec, (name, key), mistakes) for key, spec in section.items()
            }
            section = {key: fn for key, fn in functions.items() if fn is not None}
        if section:
            stages.append((name, {str(key): value for key, value in section.items()}))
    for name in ("map", "map_batches"):
        specs = data.get(name, [])
        for number, spec in enumerate(specs if isinstance(specs, list) else [specs]):
            loc: Loc = (name, number) if isinstance(specs, list) else (name,)
            fn = resolve(spec, {}, loc, mistakes)
            if fn is not None:
                stages.append((name, fn))
    return stages


def _added(dataset: AnyData, method: str, arguments: Any, loc: Loc, mistakes: Mistakes) -> AnyData:
    """The data set with one more call; as it was, and the mistake noted, where the call is refused."""
    try:
        call: Callable[..., AnyData] = getattr(dataset, method)
        return call(**arguments) if isinstance(arguments, dict) else call(arguments)
    except ConfigError as error:
        mistakes.add(loc, str(error))
        return dataset


def _options(section: Any, mistakes: Mistakes) -> dict[str, Any]:
    def functions(specs: Any, loc: Loc) -> dict[str, Any] | None:
        if not isinstance(specs, dict):
            mistakes.add(loc, f"{specs!r} stands where fields are needed, as in image: ...")
            return None
        made = {
            key: resolve(spec, AFTER_COPY, (*loc, key), mistakes) for key, spec in specs.items()
        }
        return {str(key): fn for key, fn in made.items() if fn is not None}

    options = check_section(
        LOADER, _resolved(section, "after_copy", functions, ("loader",)), ("loader",), mistakes
    )
    given = {} if options is None else options.given()
    if given.get("quarantine"):
        given["quarantine"] = os.path.join(os.getcwd(), os.path.expanduser(given["quarantine"]))  # noqa: PTH109, PTH111
    return given


def _resolved(section: Any, key: str, resolving: Callable[[Any, Loc], Any], loc: Loc) -> Any:
    """The section with what the names of functions at this key stand for; without the key where there is none."""
    if not isinstance(section, dict) or section.get(key) is None:
        return section
    made = resolving(section[key], (*loc, key))
    rest = {name: value for name, value in section.items() if name != key}
    return rest if made is None else {**rest, key: made}
