"""Turn text into tokens with the tokenizer of a Hugging Face `tokenizer.json`.

Owns carrying the tokenizer to the workers: they need the library, but not the file. The file has
the format of the `tokenizers` library (https://huggingface.co/docs/tokenizers).
"""

from __future__ import annotations

import hashlib
import os
from functools import cached_property
from typing import Any

import fsspec
import numpy as np

from rayingest.errors import ConfigError, DataError
from rayingest.storage.redact import redact
from rayingest.util.optional import import_optional


class Tokenize:
    """For `.map`: replace a text field by a field of its tokens, int32[n].

    - `file`: a `tokenizer.json`, on any storage that fsspec reads.
    - `field`, `into`: the field of the text, and the field for the tokens.
    - `special_tokens`: add the tokens that the tokenizer adds by itself.
    - `end`: the name of a token to put after every text, such as "<|endoftext|>".
    - `longest`: cut after this many tokens, `end` included.

    Needs `pip install 'rayingest[tokenizers]'`. Raises ConfigError if the file is not a tokenizer
    that the library reads, or lacks `end`.
    """

    def __init__(
        self,
        file: str | os.PathLike[str],
        field: str = "text",
        into: str = "tokens",
        *,
        special_tokens: bool = False,
        end: str | None = None,
        longest: int | None = None,
    ) -> None:
        if not isinstance(file, (str, os.PathLike)):
            raise ConfigError(f"Tokenize: {file!r} is not a path: give that of a tokenizer.json")
        if longest is not None and (
            isinstance(longest, bool) or not isinstance(longest, int) or longest < 1
        ):
            raise ConfigError(f"Tokenize: longest={longest!r}: give a whole number, 1 or more")
        self._file, self._field, self._into = os.fspath(file), field, into
        self._special, self._end, self._longest = special_tokens, end, longest
        try:
            with fsspec.open(self._file, "rb") as opened:
                self._json: bytes = opened.read()
        except (OSError, ValueError) as error:
            raise ConfigError(f"Tokenize: cannot read {redact(self._file)}: {error}") from None
        self._mark = hashlib.blake2b(self._json, digest_size=8).hexdigest()
        self._end_id = self._find_end()

    def __repr__(self) -> str:
        options = f"special_tokens={self._special}, end={self._end!r}, longest={self._longest}"
        return f"Tokenize({self._mark}, {self._field!r}, {self._into!r}, {options})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_tokenizer"}

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Return the sample with tokens instead of text. DataError if the field holds no text."""
        rest = dict(sample)
        text = rest.pop(self._field, None)
        if not isinstance(text, str):
            found = type(text).__name__ if self._field in sample else "missing"
            raise DataError(f"field {self._field!r} is {found}, not text")
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=self._special).ids
        if self._end_id is not None:
            ids = [*ids[: None if self._longest is None else self._longest - 1], self._end_id]
        rest[self._into] = np.array(ids[: self._longest], np.int32)
        return rest

    @cached_property
    def _tokenizer(self) -> Any:
        library = import_optional("tokenizers", "tokenizers", "Tokenize")
        try:
            tokenizer = library.Tokenizer.from_buffer(self._json)
        except Exception as error:  # the library raises no narrower class
            raise ConfigError(
                f"Tokenize: {redact(self._file)} is not a tokenizer: {error}"
            ) from None
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    def _find_end(self) -> int | None:
        tokenizer = self._tokenizer  # raises for a file that is not a tokenizer
        number: int | None = None if self._end is None else tokenizer.token_to_id(self._end)
        if self._end is not None and number is None:
            raise ConfigError(f"Tokenize: end={self._end!r} is not a token of {redact(self._file)}")
        return number
