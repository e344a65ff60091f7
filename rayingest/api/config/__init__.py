"""Load a YAML file in the words of the API: a `Dataset` and the options of its loader.

Owns the meaning of the sections. All mistakes in the file are found before any data are read, and
reported together. Stages run in the order select, decode, map, map_batches, wherever the file has
them.
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
from rayingest.util.names import suggest

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
"""Sections that a source of a mixture does not have."""


@dataclass(frozen=True)
class Config:
    """The contents of a configuration file. `job`: the section with the job's own settings."""

    path: str
    job: Mapping[str, Any]
    _dataset: AnyData
    _options: Mapping[str, Any]
    _lines: Mapping[Loc, int] = field(repr=False)

    def dataset(self) -> AnyData:
        """Return the data with their stages, order and batches."""
        return self._dataset

    def loader_options(self) -> dict[str, Any]:
        """Return the arguments for `dataset().loader(...)` that the file has."""
        return dict(self._options)

    def job_as(self, model: type[AnySection]) -> AnySection:
        """Return the section `job` as the job's own model.

        Raises ConfigError that names each mistake and its line.
        """
        mistakes = Mistakes(self.path, dict(self._lines))
        section = check_section(model, dict(self.job), ("job",), mistakes)
        mistakes.refuse()
        assert section is not None
        return section


def load_config(path: str | os.PathLike[str]) -> Config:
    """Load a configuration from a YAML file. Relative paths in it start at the current folder.

    Functions are imported (the current folder is added to `sys.path`); no data are read.

    Returns:
        A `Config`, with `dataset()`, `loader_options()`, `job` and `job_as(model)`.

    Raises:
        ConfigError: lists every mistake with its line.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise ConfigError(f"load_config takes the path of a YAML file, not a {type(path).__name__}")
    document = read_document(Path(path))
    data, mistakes = document.data, document.mistakes
    _check_keys(data, SECTIONS, mistakes)
    if "batch" not in data:
        mistakes.add((), "the section 'batch' is missing")
    dataset = _dataset(data, mistakes)
    options = _options(data.get("loader"), mistakes)
    job = data.get("job") or {}
    if not isinstance(job, dict):
        mistakes.add(("job",), f"{job!r} is not a mapping of the job's own keys")
    mistakes.refuse()
    assert dataset is not None
    return Config(str(path), job, dataset, options, dict(mistakes.lines))


def _check_keys(data: Mapping[str, Any], allowed: Sequence[str], mistakes: Mistakes) -> None:
    for key in data:
        if key not in allowed:
            mistakes.add((str(key),), unknown_key(str(key), allowed))
    if ("read" in data) == ("mix" in data):
        both = "'read' cannot be used with 'mix': leave one of them out"
        problem = both if "read" in data else "'read' (or 'mix') is missing"
        mistakes.add((), f"the section {problem}")


def _dataset(data: Mapping[str, Any], mistakes: Mistakes) -> AnyData | None:
    """Return the data, None if the file does not name any."""
    dataset = _mix(data["mix"], mistakes) if "mix" in data else None
    if "read" in data:
        dataset = _read(data["read"], mistakes)
    for stage, arguments in _stages(data, mistakes):
        if dataset is not None:
            dataset = _call(dataset, stage, arguments, (stage,), mistakes)
    for method in ("length", "where", "filter", "skip", "take"):
        if method in data:
            value = data[method]
            if method == "filter" or (method == "length" and ":" in str(value)):
                value = resolve(value, {}, (method,), mistakes)
            if dataset is not None and value is not None:
                dataset = _call(dataset, method, value, (method,), mistakes)
    for method, model in (
        ("weighted", WEIGHTED),
        ("epoch", EPOCH),
        ("pack", PACK),
        ("shuffle", SHUFFLE),
    ):
        section = _weights(data.get(method), mistakes) if method == "weighted" else data.get(method)
        options = check_section(model, section, (method,), mistakes) if method in data else None
        if dataset is not None and options is not None:
            dataset = _call(dataset, method, options.options(), (method,), mistakes)
    if "batch" in data:
        section = _resolve_key(
            data["batch"], "collate", lambda spec, loc: resolve(spec, {}, loc, mistakes), ("batch",)
        )
        batch = check_section(BATCH, section, ("batch",), mistakes)
        if dataset is not None and batch is not None:
            dataset = _call(dataset, "batch", batch.options(), ("batch",), mistakes)
    return dataset


def _weights(section: Any, mistakes: Mistakes) -> Any:
    """Return the section `weighted` with functions for their names; other words are fields."""
    for key in ("by", "balance") if isinstance(section, dict) else ():
        if ":" in str(section.get(key)):
            section = _resolve_key(
                section, key, lambda spec, loc: resolve(spec, {}, loc, mistakes), ("weighted",)
            )
    return section


def _read(section: Any, mistakes: Mistakes) -> AnyData | None:
    keys = dict(section) if isinstance(section, dict) else {}
    name = keys.pop("format", None)
    if not isinstance(name, str) or name not in READS:
        problem = "is missing" if name is None else f"{name!r} is unknown"
        mistakes.add(
            ("read", "format"), f"{problem}; formats: {', '.join(READS)}{suggest(str(name), READS)}"
        )
        return None
    read = check_section(READS[name], keys, ("read",), mistakes)
    if read is None:
        return None
    try:
        return READERS[name](**read.options())
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
        return mix(sources, **options.options())
    except ConfigError as error:
        mistakes.add(("mix",), str(error))
        return None


def _sources(section: Any, mistakes: Mistakes) -> dict[str, AnyData | None]:
    """Return the data sets to mix, None for each that has a mistake."""
    loc: Loc = ("mix", "sources")
    if not isinstance(section, dict) or not all(
        isinstance(source, dict) for source in section.values()
    ):
        mistakes.add(loc, f"{section!r} is not a mapping of sources, as in web: {{read: ...}}")
        return {"": None}
    sources = {}
    for name, source in section.items():
        inside = mistakes.under((*loc, str(name)))
        _check_keys(source, [key for key in SECTIONS if key not in _OF_MIXTURES], inside)
        sources[str(name)] = _dataset(source, inside)
    return sources


def _stages(data: Mapping[str, Any], mistakes: Mistakes) -> list[tuple[str, Any]]:
    """Return the names and arguments of the verbs that add stages, in the order of the stages."""
    stages: list[tuple[str, Any]] = []
    for name in ("select", "decode"):
        section = data.get(name)
        if name not in data:
            continue
        if not isinstance(section, dict) or not section:
            mistakes.add((name,), f"{section!r} is not a mapping of fields, as in image: ...")
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


def _call(dataset: AnyData, method: str, arguments: Any, loc: Loc, mistakes: Mistakes) -> AnyData:
    """Return the data with one more call, or as they are after adding the mistake of the call."""
    try:
        call: Callable[..., AnyData] = getattr(dataset, method)
        return call(**arguments) if isinstance(arguments, dict) else call(arguments)
    except ConfigError as error:
        mistakes.add(loc, str(error))
        return dataset


def _options(section: Any, mistakes: Mistakes) -> dict[str, Any]:
    def functions(specs: Any, loc: Loc) -> dict[str, Any] | None:
        if not isinstance(specs, dict):
            mistakes.add(loc, f"{specs!r} is not a mapping of fields, as in image: ...")
            return None
        found = {
            key: resolve(spec, AFTER_COPY, (*loc, key), mistakes) for key, spec in specs.items()
        }
        return {str(key): fn for key, fn in found.items() if fn is not None}

    options = check_section(
        LOADER, _resolve_key(section, "after_copy", functions, ("loader",)), ("loader",), mistakes
    )
    given = {} if options is None else options.options()
    if given.get("quarantine"):
        folder = os.path.expanduser(given["quarantine"])  # noqa: PTH111
        given["quarantine"] = os.path.join(os.getcwd(), folder)  # noqa: PTH109
    return given


def _resolve_key(section: Any, key: str, resolving: Callable[[Any, Loc], Any], loc: Loc) -> Any:
    """Return the section with functions for their names at this key; without it after a mistake."""
    if not isinstance(section, dict) or section.get(key) is None:
        return section
    value = resolving(section[key], (*loc, key))
    rest = {name: value for name, value in section.items() if name != key}
    return rest if value is None else {**rest, key: value}
