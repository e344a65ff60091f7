"""Names in messages are few, and those like the mistyped one come first."""

from __future__ import annotations

from rayingest.util.names import shorten, show_names, suggest


def test_few_names_are_all_shown() -> None:
    """In their order; "none" without any."""
    assert show_names(["b", "a"]) == "'b', 'a'"
    assert show_names([]) == "none"


def test_of_many_names_the_similar_ones_come_first() -> None:
    """A dozen, the number of all, and a suggestion."""
    names = [f"x{i}" for i in range(100)] + ["label"]
    text = show_names(names, "lable")
    assert text.startswith("'label', 'x0', 'x1',")
    assert text.endswith("'x10', ... (101 in all); did you mean 'label'?")


def test_a_suggestion_is_similar_or_contains_the_name() -> None:
    """In any case of letters."""
    assert suggest("LABLE", ["label"]) == "; did you mean 'label'?"
    assert suggest("resize", ["RandomResizedCrop"]) == "; did you mean 'RandomResizedCrop'?"
    assert suggest("q", ["label"]) == ""


def test_long_text_keeps_its_begin() -> None:
    """And says how long it is."""
    assert shorten("a" * 200) == "a" * 200
    assert shorten("a" * 5000) == "a" * 160 + "... (5,000 characters)"
