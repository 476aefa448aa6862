"""A round's draft tree as lines of text.

' the'
├─ ' quick' 0.620 [accepted]
│  ├─ ' brown' 0.410
│  └─ ' red' [drawn]
└─ ' slow' 0.100
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from paceline_client.rounds import RoundTrace


class Mark(StrEnum):
    """What became of a token. One without a mark was not kept."""

    ACCEPTED = "accepted"
    RELAXED = "relaxed"
    DRAWN = "drawn"
    HELD_BACK = "held back"
    FOCUS = "focus"


LEGEND = (
    "[accepted] draft token kept, [relaxed] kept by the nucleus rule alone, [drawn] added by the target, [held back]"
    " drawn and not emitted, [focus] drawn before the tree below it; no mark: not kept; numbers: drafter's probability"
)

Paint = Callable[[str, Mark | None], str]  # the text, coloured for its mark


def unpainted(text: str, mark: Mark | None) -> str:
    """The text as it is."""
    return text


@dataclass(frozen=True, slots=True)
class Strokes:
    """What branches are drawn with; all of one width."""

    branch: str
    last: str
    run: str
    gap: str


BOX = Strokes("├─ ", "└─ ", "│  ", "   ")
ASCII = Strokes("|- ", "`- ", "|  ", "   ")


@dataclass(frozen=True, slots=True)
class _Item:
    text: str
    mark: Mark | None


def label(token: int, text: str) -> str:
    """A token in quotes, line breaks and other unprintable characters escaped; its id where its text is unknown."""
    return repr(text) if text else f"#{token}"


def tree_lines(
    trace: RoundTrace, before: str, *, ended: bool = False, strokes: Strokes = BOX, paint: Paint = unpainted
) -> list[str]:
    """The root, then a line for each node and for what the target added. A node that fits nowhere hangs at the root.

    Args:
        trace: the round.
        before: label of the token before its first one.
        ended: whether the reply ended with this round; nothing is held back then.
        strokes: what branches are drawn with.
        paint: colours.
    """
    focus = _focus(trace)
    root = _Item(focus or before, Mark.FOCUS if trace.focused and trace.tree_tokens else None)
    children = _children(trace, ended)
    lines = [paint(_text(root), root.mark)]
    below = [(item, node, "", place) for item, node, place in _placed(children, -1)]
    while below:  # a stack: deep trees need no recursion
        item, node, indent, last = below.pop()
        lines.append(indent + (strokes.last if last else strokes.branch) + paint(_text(item), item.mark))
        if node is not None:
            deeper = indent + (strokes.gap if last else strokes.run)
            below += [(child, index, deeper, place) for child, index, place in _placed(children, node)]
    return lines


def _text(item: _Item) -> str:
    return item.text if item.mark is None else f"{item.text} [{item.mark}]"


_Children = dict[int, list[tuple[_Item, int | None]]]  # by node, -1 the root: items, with a number if they are nodes


def _placed(children: _Children, node: int) -> list[tuple[_Item, int | None, bool]]:
    """What is below a node, the last one first, and whether it is the last."""
    items = children.get(node, [])
    return [(item, index, place == 0) for place, (item, index) in enumerate(reversed(items))]


def _children(trace: RoundTrace, ended: bool) -> _Children:
    accepted, relaxed = set(trace.accepted), set(trace.relaxed)
    children: _Children = {}
    for node, token in enumerate(trace.tree_tokens):
        parent = trace.tree_parents[node] if node < len(trace.tree_parents) else -1
        mark = Mark.RELAXED if node in relaxed else Mark.ACCEPTED if node in accepted else None
        item = _Item(_node(trace, node, token), mark)
        children.setdefault(parent if 0 <= parent < node else -1, []).append((item, node))
    end = trace.accepted[-1] if trace.accepted and trace.accepted[-1] < len(trace.tree_tokens) else -1
    added = _added(trace, ended)
    if added is not None:
        children.setdefault(end, []).append((added, None))
    return children


def _node(trace: RoundTrace, node: int, token: int) -> str:
    text = label(token, trace.tree_texts[node] if node < len(trace.tree_texts) else "")
    if node >= len(trace.tree_log_probs) or math.isnan(trace.tree_log_probs[node]):
        return text
    prob = math.exp(min(trace.tree_log_probs[node], 0.0))
    return f"{text} {'<0.001' if prob < 0.0005 else f'{prob:.3f}'}"


def _added(trace: RoundTrace, ended: bool) -> _Item | None:
    """What the target added below the last accepted node."""
    alone = trace.focused and not trace.tree_tokens  # a token drawn from a row that was there; its tree comes later
    token = trace.emitted[-1] if alone and trace.emitted else trace.drawn
    if token is not None:
        texts = [text for other, text in zip(trace.emitted, trace.emitted_texts, strict=False) if other == token]
        return _Item(label(token, texts[-1] if texts else ""), Mark.FOCUS if alone else Mark.DRAWN)
    if trace.rule == "retain" and trace.accepted and not ended:
        return _Item("...", Mark.HELD_BACK)
    return None


def _focus(trace: RoundTrace) -> str:
    """Label of the token that the tree is spent below, if this round emitted it; else empty."""
    before_tree = len(trace.emitted) - len(trace.accepted) - (trace.drawn is not None)
    if not (trace.focused and trace.tree_tokens and before_tree > 0):
        return ""
    return label(trace.emitted[0], trace.emitted_texts[0] if trace.emitted_texts else "")
