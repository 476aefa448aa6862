"""How long rounds last, from the records of an engine."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.target.record import RoundRecord


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """Rounds of one session, the first ones left out. Seconds are means unless they say otherwise."""

    rounds: int
    round_s: float  # from the end of a round to the end of the next
    verify_s: float  # the pass that walks the tree
    draft_s: float  # from asking for a tree to its arrival, the wire included
    exposed_s: float  # in which the target waits for a tree, nothing being computed
    accepted: float  # draft tokens a round
    emitted: float  # tokens a round
    hit_share: float  # rounds in which the tree held a drawn token, of those that drew one before it


def round_times(records: Sequence[RoundRecord], skip: int = 2) -> RoundTimes:
    """From all records of one session. Raises ValueError if there are too few rounds."""
    ends: list[RoundRecord] = []
    before: list[list[RoundRecord]] = []  # row passes of the round that ends with the record of that index
    rows: list[RoundRecord] = []
    for record in records:
        if record.rule == "draw_first" and not record.focused and record.pass_tokens == 1 and not len(record.tree):
            rows.append(record)
            continue
        ends.append(record)
        before.append(rows)
        rows = []
    if len(ends) < skip + 2:
        raise ValueError(f"{len(ends)} rounds, wanted: more than {skip + 1}")
    chosen = range(skip, len(ends))
    spans = [ends[index].ended_at - ends[index - 1].ended_at for index in chosen]
    computed = [
        (ends[index].ended_at - ends[index].started_at) + sum(each.ended_at - each.started_at for each in before[index])
        for index in chosen
    ]
    drafts = [
        each.tree_at - each.asked_at
        for each in ends[skip:]
        if each.tree_at is not None and each.asked_at is not None and each.tree_at >= each.asked_at
    ]
    drawn = [index for index in chosen if before[index]]
    hits = sum(len(ends[index].tree) > 0 for index in drawn)
    emitted = sum(len(ends[index].delivered) + sum(len(each.delivered) for each in before[index]) for index in chosen)
    return RoundTimes(
        rounds=len(spans),
        round_s=statistics.fmean(spans),
        verify_s=statistics.fmean(ends[index].ended_at - ends[index].started_at for index in chosen),
        draft_s=statistics.fmean(drafts) if drafts else 0.0,
        exposed_s=statistics.fmean(span - busy for span, busy in zip(spans, computed, strict=True)),
        accepted=statistics.fmean(len(ends[index].accepted) for index in chosen),
        emitted=emitted / len(spans),
        hit_share=hits / len(drawn) if drawn else 0.0,
    )
