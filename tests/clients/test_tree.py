"""Trees as they are drawn, from fixed rounds."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import pytest

from paceline.v1 import common_pb2
from paceline_client import RoundTrace
from paceline_client.commands.tree import ASCII, LEGEND, Mark, tree_lines
from paceline_client.commands.tree_view import TreeView, header, tree_view
from paceline_client.rounds import round_of

EMPTY = round_of(common_pb2.RoundTrace())


def logs(*probs: float) -> tuple[float, ...]:
    return tuple(math.log(prob) for prob in probs)


# The tree: 10 -> (11 -> (13, 14)), 12.
TREE = replace(
    EMPTY,
    position=45,
    emitted=(10, 11, 15),
    emitted_texts=(" quick", "\n", "fox"),
    rule="rerank",
    reason="the row is free",
    tree_tokens=(10, 12, 11, 13, 14),
    tree_texts=(" quick", " slow", "\n", "\u00a0'", ""),
    tree_parents=(-1, -1, 0, 2, 2),
    tree_log_probs=logs(0.62, 0.25, 0.9996, 0.0004, 0.05),
    accepted=(0, 2),
    drawn=15,
    draft_ms=12.04,
    pass_ms=30.4,
    pass_tokens=9,
)


def test_a_tree_with_accepted_and_drawn_tokens() -> None:
    assert tree_lines(TREE, "' the'") == [
        "' the'",
        "├─ ' quick' 0.620 [accepted]",
        "│  └─ '\\n' 1.000 [accepted]",
        '│     ├─ "\\xa0\'" <0.001',
        "│     ├─ #14 0.050",
        "│     └─ 'fox' [drawn]",
        "└─ ' slow' 0.250",
    ]


def test_where_nothing_is_accepted_the_drawn_token_hangs_at_the_root() -> None:
    trace = replace(TREE, accepted=(), emitted=(15,), emitted_texts=("fox",), tree_log_probs=())
    assert tree_lines(trace, "(prompt)", strokes=ASCII) == [
        "(prompt)",
        "|- ' quick'",
        "|  `- '\\n'",
        '|     |- "\\xa0\'"',
        "|     `- #14",
        "|- ' slow'",
        "`- 'fox' [drawn]",
    ]


def test_a_relaxed_token() -> None:
    trace = replace(TREE, relaxed=(2,), tree_tokens=(10, 12, 11))
    assert tree_lines(trace, "''")[1:3] == ["├─ ' quick' 0.620 [accepted]", "│  └─ '\\n' 1.000 [relaxed]"]


def test_a_token_held_back_unless_the_reply_ended() -> None:
    trace = replace(TREE, rule="retain", drawn=None, emitted=(10,), accepted=(0,), tree_tokens=(10, 12))
    assert tree_lines(trace, "''") == [
        "''",
        "├─ ' quick' 0.620 [accepted]",
        "│  └─ ... [held back]",
        "└─ ' slow' 0.250",
    ]
    assert tree_lines(trace, "''", ended=True) == ["''", "├─ ' quick' 0.620 [accepted]", "└─ ' slow' 0.250"]
    ended_by_a_draft = replace(trace, rule="draft")
    assert tree_lines(ended_by_a_draft, "''")[1:] == ["├─ ' quick' 0.620 [accepted]", "└─ ' slow' 0.250"]


FOCUSED = replace(EMPTY, rule="draw_first", focused=True, tree_tokens=(8,), tree_texts=("b",), tree_parents=(-1,))


def test_the_root_is_the_token_drawn_before_the_tree() -> None:
    same_round = replace(FOCUSED, emitted=(7, 8, 9), emitted_texts=("a", "b", "c"), accepted=(0,), drawn=9)
    expected = ["'a' [focus]", "└─ 'b' [accepted]", "   └─ 'c' [drawn]"]
    assert tree_lines(same_round, "'x'") == expected
    without_texts = replace(same_round, emitted_texts=())
    assert tree_lines(without_texts, "'x'") == ["#7 [focus]", "└─ 'b' [accepted]", "   └─ #9 [drawn]"]
    round_before = replace(same_round, emitted=(8, 9), emitted_texts=("b", "c"))
    assert tree_lines(round_before, "'a'") == expected


def test_a_token_drawn_from_a_row_that_was_there() -> None:
    drawn = replace(EMPTY, rule="draw_first", focused=True, emitted=(7,), emitted_texts=("a",), drawn=7)
    assert tree_lines(drawn, "'x'") == ["'x'", "└─ 'a' [focus]"]
    assert tree_lines(replace(drawn, drawn=None), "'x'") == ["'x'", "└─ 'a' [focus]"]


def test_a_round_without_a_tree() -> None:
    plain = replace(EMPTY, emitted=(7,), emitted_texts=("a",), drawn=7)
    assert tree_lines(plain, "'x'") == ["'x'", "└─ 'a' [drawn]"]


def test_a_malformed_tree_is_drawn_as_far_as_it_goes() -> None:
    """Parents that are missing or come later, marks out of range, a logarithm that is no number."""
    trace = replace(
        EMPTY,
        tree_tokens=(1, 2, 3, 4),
        tree_parents=(3, 9, -7),
        tree_log_probs=(math.nan, math.inf, -math.inf),
        accepted=(99,),
        relaxed=(98,),
        drawn=5,
    )
    assert tree_lines(trace, "x") == ["x", "├─ #1", "├─ #2 1.000", "├─ #3 <0.001", "├─ #4", "└─ #5 [drawn]"]


def test_a_deep_tree_needs_no_recursion() -> None:
    depth = 3000
    deep = replace(EMPTY, tree_tokens=(1,) * depth, tree_parents=tuple(range(-1, depth - 1)))
    assert len(tree_lines(deep, "x")) == depth + 1


@pytest.mark.parametrize(
    ("trace", "expected"),
    [
        (
            TREE,
            "round 3 at 45: rerank (the row is free), 2 of 5 drafted accepted, draft 12.0 ms, pass 30.4 ms,"
            " 9 tokens in it",
        ),
        (
            replace(EMPTY, position=7, rule="draft", fallback="late", pass_ms=5.0, pass_tokens=1),
            "round 3 at 7: draft, no tree, pass 5.0 ms, 1 tokens in it, fallback late",
        ),
        (
            replace(TREE, relaxed=(0,), reason="two\nlines", draft_ms=None, deviation_spent=0.12345),
            "round 3 at 45: rerank (two lines), 2 of 5 drafted accepted (1 relaxed), pass 30.4 ms, 9 tokens in it,"
            " deviation 0.1235",
        ),
        (EMPTY, "round 3 at 0: plain, no tree, pass 0.0 ms, 0 tokens in it"),
    ],
)
def test_one_line_heads_each_round(trace: RoundTrace, expected: str) -> None:
    assert header(3, trace) == expected


# -- the view ----------------------------------------------------------------------------------------------------------


def test_rounds_come_with_one_legend_and_follow_one_another() -> None:
    stream = io.StringIO()
    view = TreeView(stream)
    first = replace(EMPTY, position=4, emitted=(7,), emitted_texts=("a",), drawn=7)
    view.show([first])
    assert stream.getvalue().splitlines() == [LEGEND, "", header(1, first), "(prompt)", "└─ 'a' [drawn]"]
    second = replace(first, position=5, emitted_texts=())
    view.show([second, second])
    view.end()
    assert stream.getvalue().splitlines()[5:] == [
        *("", header(2, second), "'a'", "└─ #7 [drawn]"),
        *("", header(3, second), "#7", "└─ #7 [drawn]"),
    ]
    view.begin()
    view.show([first])
    assert stream.getvalue().splitlines()[13:] == ["", header(1, first), "(prompt)", "└─ 'a' [drawn]"]


def test_a_round_that_may_hold_a_token_back_waits_for_the_next() -> None:
    stream = io.StringIO()
    view = TreeView(stream)
    held = replace(
        EMPTY, rule="retain", emitted=(7,), emitted_texts=("a",), tree_tokens=(7,), tree_texts=("a",), accepted=(0,)
    )
    view.show([held])
    assert stream.getvalue() == ""
    view.show([held])
    assert stream.getvalue().splitlines()[3:] == ["(prompt)", "└─ 'a' [accepted]", "   └─ ... [held back]"]
    view.end()
    assert stream.getvalue().splitlines()[6:] == ["", header(2, held), "'a'", "└─ 'a' [accepted]"]


def test_a_server_that_traces_nothing_is_told() -> None:
    stream = io.StringIO()
    view = TreeView(stream)
    view.end()
    assert stream.getvalue() == "no rounds: the server traced none\n"


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environment", "coloured"),
    [
        (Terminal(), {"TERM": "xterm"}, True),
        (Terminal(), {"TERM": "xterm", "NO_COLOR": ""}, True),
        (Terminal(), {"TERM": "xterm", "NO_COLOR": "1"}, False),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {"TERM": "xterm"}, False),
    ],
)
def test_colour_is_for_terminals_and_adds_to_the_words(
    stream: io.StringIO, environment: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    tree_view(stream).show([TREE])
    shown = stream.getvalue()
    assert ("\033[32m' quick' 0.620 [accepted]\033[0m" in shown) == coloured
    assert ("\033" in shown) == coloured
    assert "[accepted]" in shown


def test_a_stream_without_box_characters_gets_plain_ones() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    tree_view(stream).show([TREE])
    shown = stream.buffer.getvalue().decode()  # type: ignore[attr-defined]
    assert "|- ' quick' 0.620 [accepted]" in shown


def test_the_legend_names_every_mark_in_one_line() -> None:
    assert all(f"[{mark}]" in LEGEND for mark in Mark)
    assert "\n" not in LEGEND
