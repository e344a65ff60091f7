"""Tokenize replaces text by a tokenizer file's tokens, equal in every process."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import tokenizers

import rayingest as ri
from rayingest.api.dataset import Dataset
from rayingest.transforms.code_mark import code_mark

WORDS = ["<end>", "<unk>", "<start>", *"abcdefgh"]


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A tokenizer of letters, set to truncate, pad and add a begin token by default."""
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, "<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        "<start> $A", special_tokens=[("<start>", 2)]
    )
    made.enable_truncation(2)
    made.enable_padding(length=5)
    made.save(str(tmp_path / "tokenizer.json"))
    return str(tmp_path / "tokenizer.json")


def test_tokens_take_the_texts_place(file: str) -> None:
    """Tokens are int32 of any length; other fields and the argument stay as they are."""
    sample = {"text": "a b c z", "n": 3}
    made = ri.Tokenize(file)(sample)
    assert made.keys() == {"tokens", "n"}
    assert made["tokens"].dtype == np.int32
    assert made["tokens"].tolist() == [3, 4, 5, 1]
    assert sample == {"text": "a b c z", "n": 3}
    assert ri.Tokenize(file, "text", "ids", special_tokens=True)(sample)["ids"].tolist() == [
        2,
        3,
        4,
        5,
        1,
    ]
    assert ri.Tokenize(file, end="<end>", longest=3)(sample)["tokens"].tolist() == [3, 4, 0]
    assert ri.Tokenize(file, longest=2)({"text": "a"})["tokens"].tolist() == [3]
    assert ri.Tokenize(file, end="<end>")({"text": ""})["tokens"].tolist() == [0]


def test_it_travels_without_its_file(file: str) -> None:
    """It pickles without its file, and its mark is the file contents'."""
    tokenize = ri.Tokenize(file)
    mark = code_mark([tokenize])
    sent = pickle.dumps(tokenize)
    text = Path(file).read_text()
    Path(file).unlink()
    assert pickle.loads(sent)({"text": "a b"})["tokens"].tolist() == [3, 4]
    assert code_mark([pickle.loads(sent)]) == mark
    Path(file).write_text(text.replace('"h"', '"i"'))
    assert code_mark([ri.Tokenize(file)]) != mark


def test_text_is_tokenised_and_packed(file: str, tmp_path: Path) -> None:
    """Documents of JSON Lines are packed by their tokens; long ones are cut."""
    texts = [" ".join("abcdefgh"[j % 8] for j in range(i)) for i in range(1, 40)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    data: Dataset = ri.read_json(str(tmp_path / "a.jsonl")).map(ri.Tokenize(file, end="<end>"))
    with data.pack(16).batch(4, partial="short").loader(workers=0) as loader:
        batches = list(loader)
    tokens = np.concatenate([batch["tokens"].numpy().ravel() for batch in batches])
    segments = np.concatenate([batch["segment_ids"].numpy().ravel() for batch in batches])
    assert str(batches[0]["tokens"].dtype) == "torch.int32"
    assert "".join("." if t == 0 else WORDS[t] for t in tokens[segments > 0]) == "".join(
        text.replace(" ", "") + "." for text in texts
    )


def test_wrong_options_are_refused(file: str, tmp_path: Path) -> None:
    """A wrong file, an unknown end token and a field without text are errors."""
    (tmp_path / "none.json").write_text("{}")
    for how, said in (
        ({"file": str(tmp_path / "none.json")}, "is not a tokenizer"),
        ({"file": str(tmp_path / "absent.json")}, "cannot read"),
        ({"file": file, "end": "<eos>"}, "'<eos>' is not a token"),
        ({"file": file, "longest": 0}, "longest=0"),
    ):
        with pytest.raises(ri.ConfigError, match=said):
            ri.Tokenize(**how)  # type: ignore[arg-type]
    with pytest.raises(ri.DataError, match="'text' is int, not text"):
        ri.Tokenize(file)({"text": 3})
