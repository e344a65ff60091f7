"""The sections of a configuration and their keys: the names, types and limits of the API's own arguments.

Owns what may be written, and what is said where it is something else. Defaults are the API's: a key that is not given
is not passed on.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rayingest.config.document import Loc, Mistakes, unknown_key
from rayingest.plan.order import PARTIALS

AtLeastOne = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """Known keys, values that are of their type already. Jobs derive the model of their own section from it."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    def given(self) -> dict[str, Any]:
        """The keys that the file has."""
        return {name: getattr(self, name) for name in self.model_fields_set}


class Read(Section):
    """`ri.read_<format>(...)`."""

    format: str
    urls: str | list[str]
    index: str | None = None
    block_bytes: AtLeastOne | None = None
    storage_options: dict[str, Any] | None = None


class ReadJson(Read):
    """`ri.read_json(...)`."""

    max_expansion: AtLeastOne | None = None


class ReadWebDataset(ReadJson):
    """`ri.read_webdataset(...)`."""

    strict: bool = True
    allow_pipe: bool = False


READS: dict[str, type[Read]] = {"webdataset": ReadWebDataset, "parquet": Read, "json": ReadJson}


class Shuffle(Section):
    """`.shuffle(...)`."""

    seed: int = 0
    window: AtLeastOne | None = None
    lanes: AtLeastOne | None = None


class Batch(Section):
    """`.batch(...)`; `collate` names a function."""

    size: AtLeastOne
    partial: Literal[PARTIALS] = "drop"  # type: ignore[valid-type]
    collate: Any = None


class LoaderOptions(Section):
    """`.loader(...)`, without what belongs to a process: its rank, the world size and a pool."""

    workers: Annotated[int, Field(ge=0)] = 2
    device: str = "cpu"
    max_bytes: AtLeastOne | None = None
    prefetch: Annotated[int, Field(ge=0)] = 2
    pin_memory: bool | None = None
    epochs: AtLeastOne | None = None
    uneven: bool = False
    after_copy: dict[str, Any] | None = None
    start_timeout: Annotated[float, Field(gt=0)] = 60.0
    on_error: Literal["raise", "skip"] = "raise"
    max_errors: Annotated[int, Field(ge=0)] | Annotated[float, Field(gt=0, le=1)] | None = None
    quarantine: str | None = None


AnySection = TypeVar("AnySection", bound=Section)


def check_section(model: type[AnySection], data: Any, loc: Loc, mistakes: Mistakes) -> AnySection | None:
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
    return loc[:depth], f"{value!r}: ", message[:1].lower() + message[1:]


def _fields_at(model: type[BaseModel], loc: Loc) -> list[str]:
    """The keys allowed at a place: those of the model found there."""
    for part in loc:
        annotation = model.model_fields[str(part)].annotation
        inner = [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type)]
        model = next(kind for kind in inner if issubclass(kind, BaseModel))
    return list(model.model_fields)
