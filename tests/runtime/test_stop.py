"""Stop strings against their definition: the first piece that completes one, then the earliest start, the longest."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from paceline.errors import InvalidField
from paceline.runtime.stop import StopMatcher


def by_definition(stops: Sequence[str], pieces: Sequence[str]) -> tuple[list[str], str | None]:
    """Texts shown piece by piece (the last is what a flush gives), and the match."""
    shown, text, out = 0, "", []
    for piece in pieces:
        text += piece
        found = [(text.find(stop), -len(stop), stop) for stop in stops if stop in text]
        if found:
            start, _, stop = min(found)
            return [*out, text[shown:start]], stop
        # The shortest beginning of the text that leaves a proper beginning of a stop string behind it, if any.
        held = max(
            (
                size
                for stop in stops
                for size in range(len(stop))
                if text.endswith(stop[:size])  # size 0: nothing is held
            ),
            default=0,
        )
        out.append(text[shown : len(text) - held])
        shown = len(text) - held
    return [*out, text[shown:]], None


def by_matcher(stops: Sequence[str], pieces: Sequence[str]) -> tuple[list[str], str | None]:
    matcher, out = StopMatcher(stops), []
    for piece in pieces:
        outcome = matcher.push(piece)
        out.append(outcome.text)
        if outcome.matched is not None:
            return out, outcome.matched
    return [*out, matcher.flush()], None


@pytest.mark.parametrize("seed", range(300))
def test_agrees_with_the_definition(seed: int) -> None:
    """Few letters and up to 16 stop strings, so that beginnings, overlaps and repeats are everywhere."""
    rng = random.Random(seed)
    letters = "ab" if seed % 2 else "abc"

    def word(most: int) -> str:
        return "".join(rng.choices(letters, k=rng.randint(1, most)))

    for _ in range(20):
        stops = [word(rng.choice([3, 9])) for _ in range(rng.choice([1, 2, 3, 16]))]
        pieces = [word(6) if rng.random() < 0.9 else "" for _ in range(rng.randint(1, 12))]
        assert by_matcher(stops, pieces) == by_definition(stops, pieces), (stops, pieces)


@pytest.mark.parametrize(
    ("stops", "pieces", "texts", "matched"),
    [
        (["END"], ["ENDabc"], [""], "END"),  # in the first characters
        (["END"], ["so EN", "D"], ["so ", ""], "END"),  # over two pieces: no "EN" is shown
        (["END"], ["xENDy"], ["x"], "END"),  # inside one piece
        (["END"], ["a EN", "GINE", "!"], ["a ", "ENGIN", "E!", ""], None),  # its beginning only: released
        (["END"], ["x E"], ["x ", "E"], None),  # held to the end
        (["END", "ND."], ["xEND."], ["x"], "END"),  # overlapping, complete together: the one that starts first
        (["EN", "END"], ["xEND"], ["x"], "END"),  # same start, complete together: the longest
        (["EN", "END"], ["xEN", "D"], ["x"], "EN"),  # complete one after the other: the reply ends with the first
        (["abcd", "bc"], ["xabc", "d"], ["xa"], "bc"),  # so also where the longer one starts before
        (["aab"], ["aa", "ab"], ["", "a"], "aab"),  # a held beginning that moves on
        (["👩‍👧"], ["a👩", "‍👩", "‍", "👧!"], ["a", "👩‍", "", ""], "👩‍👧"),  # by code point
        (["\n\n"], ["a\n", "b\n", "\n"], ["a", "\nb", ""], "\n\n"),
        (["x", "x"], ["ax"], ["a"], "x"),  # named twice
        ([], ["END"], ["END", ""], None),
    ],
)
def test_examples(stops: list[str], pieces: list[str], texts: list[str], matched: str | None) -> None:
    assert by_matcher(stops, pieces) == (texts, matched)
    assert by_definition(stops, pieces) == (texts, matched)


def test_sixteen_long_stop_strings_that_all_almost_match() -> None:
    stops = ["a" * 200 + str(index) for index in range(16)]
    matcher = StopMatcher(stops)
    shown = "".join(matcher.push("a").text for _ in range(5000))
    assert shown == "a" * 4800
    outcome = matcher.push("7")
    assert (outcome.text, outcome.matched) == ("", stops[7])


def test_nothing_is_shown_after_a_match() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.push("a END b").text == "a "
    late = matcher.push("more")
    assert (late.text, late.matched) == ("", "END")
    assert matcher.flush() == ""


def test_tentative_text_counts_for_a_match_and_is_otherwise_forgotten() -> None:
    matcher = StopMatcher(["ab"])
    outcome = matcher.push("x", "a")
    assert (outcome.text, outcome.matched) == ("x", None)
    outcome = matcher.push("ya", "c")
    assert (outcome.text, outcome.matched) == ("y", None)
    outcome = matcher.push("", "b")
    assert (outcome.text, outcome.matched) == ("", "ab")
    outcome = StopMatcher(["ab"]).push("x", "yab")
    assert (outcome.text, outcome.matched) == ("xy", "ab")


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(InvalidField, match="stop"):
        StopMatcher(["a", ""])
