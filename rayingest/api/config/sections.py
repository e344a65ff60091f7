"""The sections of a configuration and their keys: the names, types and limits of the API's own arguments.

Owns what is said where something else is written. Defaults are the API's: a key that is not given is not passed on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError, create_model

from rayingest.api.config.document import Loc, Mistakes, unknown_key
from rayingest.api.dataset import Dataset
from rayingest.api.mixture import mix
from rayingest.api.readers import READERS
from rayingest.options.checked import Options, options_of, shown


class Section(Options):
    """What stands in one section. Jobs derive the model of their own section from it."""

    def given(self) -> dict[str, Any]:
        """The keys that the file has."""
        return {name: getattr(self, name) for name in self.model_fields_set}


def _section_of(call: Callable[..., Any], without: Collection[str] = ()) -> type[Section]:
    """The section whose keys are a call's options."""
    fields = {name: field for name, field in options_of(call).items() if name not in without}
    return create_model(call.__name__, __base__=Section, __module__=call.__module__, **fields)  # type: ignore[call-overload,no-any-return]


READS = {name: _section_of(reader) for name, reader in READERS.items()}
MIX = _section_of(mix, without={"sources"})
SHUFFLE = _section_of(Dataset.shuffle)
BATCH = _section_of(Dataset.batch)
EPOCH = _section_of(Dataset.epoch)
PACK = _section_of(Dataset.pack)
WEIGHTED = _section_of(Dataset.weighted)
LOADER = _section_of(Dataset.loader, without={"rank", "world_size", "pool"})
"""Without what belongs to a process."""

AnySection = TypeVar("AnySection", bound=Section)


def check_section(
    model: type[AnySection], data: Any, loc: Loc, mistakes: Mistakes
) -> AnySection | None:
    """The section, or None and its mistakes noted."""
    if data is None:
        data = {}
    if not isinstance(data, dict):
        mistakes.add(loc, f"{data!r} stands where keys are needed: {', '.join(model.model_fields)}")
        return None
    try:
        return model.model_validate(data)
    except ValidationError as error:
        told: dict[tuple[Loc, str], list[str]] = {}
        for details in error.errors():
            place, value, message = _explain(model, data, details)
            told.setdefault((place, value), []).append(message)
        for (place, value), messages in told.items():
            mistakes.add((*loc, *place), value + ", or ".join(dict.fromkeys(messages)))
        return None


def _explain(model: type[BaseModel], data: Any, details: Any) -> tuple[Loc, str, str]:
    """Where in the data pydantic's complaint belongs, the value there if it matters, and what to say of it."""
    loc: Loc = details["loc"]
    if details["type"] == "extra_forbidden":
        return loc, "", unknown_key(str(loc[-1]), _fields_at(model, loc[:-1]))
    if details["type"] == "missing":
        return loc, "", "this key is needed and missing"
    value: Any = data
    depth = 0
    for part in loc:  # behind the place in the data comes which of several types was tried
        inside = isinstance(value, dict) and part in value
        if not inside and not (isinstance(value, list) and isinstance(part, int)):
            break
        value, depth = value[part], depth + 1  # type: ignore[index]
    message: str = details["msg"]
    return loc[:depth], f"{shown(details)}: ", message[:1].lower() + message[1:]


def _fields_at(model: type[BaseModel], loc: Loc) -> list[str]:
    """The keys allowed at a place: those of the model found there."""
    for part in loc:
        annotation = model.model_fields[str(part)].annotation
        inner = [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type)]
        model = next(kind for kind in inner if issubclass(kind, BaseModel))
    return list(model.model_fields)
