"""Expressions give what Python gives, and have nothing else."""

from __future__ import annotations

import pickle

import pytest

from rayingest.errors import ConfigError
from rayingest.transforms.expressions import Expression

SAMPLE = {"width": 300, "label": 3, "caption": "a cat", "json": {"ok": True}, "size": None}


@pytest.mark.parametrize(
    ("text", "names", "said"),
    [
        ("width >= 256 and label in (3, 5)", ("width", "label"), True),
        ("not width % 2 == 1 and -label < 0", ("width", "label"), True),
        ("len(caption) > 5 or size is not None", ("caption", "size"), False),
        ('json["ok"]', ("json",), True),
        ("100 < width <= 299", ("width",), False),
    ],
)
def test_it_gives_what_python_gives(text: str, names: tuple[str, ...], said: bool) -> None:
    """A pickled expression names its fields and gives Python's value."""
    expression = pickle.loads(pickle.dumps(Expression(text)))
    assert expression.names == names
    assert expression(SAMPLE) is said


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("__import__('os')", "__import__"),
        ("caption.upper() == 'A'", "caption.upper()"),
        ("caption.__class__ == 1", "'caption.__class__' is not in its language"),
        ("[x for x in json]", r"\[x for x in json\]"),
        ("len(caption, 2)", "len"),
        ("width ** 9", r"'\*\*' is not in its language"),
        ("9**9**9", r"'\*\*' is not in its language"),
        ("'a'*10**10", r"'\*\*' is not in its language"),
        ("1<<2", "'<<' is not in its language"),
        ("width @ 2", "'@' is not in its language"),
        ("~width", "'~' is not in its language"),
        ("+width", r"'\+' is not in its language"),
        ("width[1:2]", "'1:2' is not in its language"),
        ("f'{width}'", "is not in its language"),
        ("(w := width)", r"w := width\)' is not in its language"),
        ("len(*width)", r"'\*width' is not in its language"),
        ("width =", "syntax"),
        ("1 < 2", "no field"),
    ],
)
def test_other_nodes_are_refused(text: str, named: str) -> None:
    """Calls, attributes, loops and powers are refused before anything runs."""
    with pytest.raises(ConfigError, match=named):
        Expression(text)
