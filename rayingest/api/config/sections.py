"""Derive the sections of a configuration from the signatures of the API.

Owns the errors for keys and values that the API does not allow. Defaults are the API's: a key that
the file does not have is not passed on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError, create_model

from rayingest.api.config.document import Loc, Mistakes, unknown_key
from rayingest.api.dataset import Dataset
from rayingest.api.mixture import mix
from rayingest.api.readers import READERS
from rayingest.options import Options, options_of, show_value


class Section(Options):
    """The values of one section. Jobs derive the model of their own section from it."""

    def options(self) -> dict[str, Any]:
        """Return the values of the keys that the file has."""
        return {name: getattr(self, name) for name in self.model_fields_set}


def _section_of(call: Callable[..., Any], without: Collection[str] = ()) -> type[Section]:
    """Make the model of a section whose keys are the options of a call."""
    fields = {name: field for name, field in options_of(call).items() if name not in without}
    make: Callable[..., type[Section]] = create_model
    return make(call.__name__, __base__=Section, __module__=call.__module__, **fields)


READS = {name: _section_of(reader) for name, reader in READERS.items()}
MIX = _section_of(mix, without={"sources"})
SHUFFLE = _section_of(Dataset.shuffle)
BATCH = _section_of(Dataset.batch)
EPOCH = _section_of(Dataset.epoch)
PACK = _section_of(Dataset.pack)
WEIGHTED = _section_of(Dataset.weighted)
LOADER = _section_of(Dataset.loader, without={"rank", "world_size", "pool"})
"""Without the options that depend on the process."""

AnySection = TypeVar("AnySection", bound=Section)


def check_section(
    model: type[AnySection], data: Any, loc: Loc, mistakes: Mistakes
) -> AnySection | None:
    """Return the section, or None after adding its mistakes."""
    if data is None:
        data = {}
    if not isinstance(data, dict):
        mistakes.add(loc, f"{data!r} is not a mapping of keys: {', '.join(model.model_fields)}")
        return None
    try:
        return model.model_validate(data)
    except ValidationError as error:
        by_place: dict[tuple[Loc, str], list[str]] = {}
        for details in error.errors():
            place, value, message = _explain(model, data, details)
            by_place.setdefault((place, value), []).append(message)
        for (place, value), messages in by_place.items():
            mistakes.add((*loc, *place), value + ", or ".join(dict.fromkeys(messages)))
        return None


def _explain(model: type[BaseModel], data: Any, details: Any) -> tuple[Loc, str, str]:
    """Return the place in the data of pydantic's error, the value there, and a message."""
    loc: Loc = details["loc"]
    if details["type"] == "extra_forbidden":
        return loc, "", unknown_key(str(loc[-1]), _fields_at(model, loc[:-1]))
    if details["type"] == "missing":
        return loc, "", "the key is missing"
    value: Any = data
    depth = 0
    for part in loc:  # the end of `loc` is not a place but the type of a union that was tried
        inside = isinstance(value, dict) and part in value
        if not inside and not (isinstance(value, list) and isinstance(part, int)):
            break
        value, depth = value[part], depth + 1  # type: ignore[index]
    message: str = details["msg"]
    return loc[:depth], f"{show_value(details)}: ", message[:1].lower() + message[1:]


def _fields_at(model: type[BaseModel], loc: Loc) -> list[str]:
    """Return the keys that are allowed at a place: those of the model there."""
    for part in loc:
        annotation = model.model_fields[str(part)].annotation
        inner = [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type)]
        model = next(kind for kind in inner if issubclass(kind, BaseModel))
    return list(model.model_fields)
