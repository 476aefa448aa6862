"""The size of draft tree which gives most tokens per second of all sessions, and the sessions it pays for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.speculation.modes import Selection, WaitFor
from paceline.target.gains import means_beside
from paceline.target.load_times import LoadTimes
from paceline.target.session import Session
from paceline.target.session_budget import SessionBudget

SLACK = 0.01  # share of tokens per second by which a size may be worse than the best
LEAD = 0.02  # share by which drafting must be better than none: the best of many guesses is a hopeful one
RISK = 0.25  # share of a plain step that a step may take longer with the trees of more sessions than drafted before


@dataclass(frozen=True, slots=True)
class Load:
    """What the sessions' choices share."""

    now: float  # seconds on the engine's clock
    sessions: int  # that decode: a plain token each in the next pass
    reading: int  # prompt tokens in it
    most: int  # draft nodes that a session may have


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What pays most."""

    nodes: int  # of the best trees
    drafts: NDArray[np.bool_]  # [S] which sessions draft; nobody where plain decoding pays more
    lead: float  # tokens per second with the best trees over those of plain decoding
    lost_s: float  # that a step takes longer with the best trees than plain decoding would for its tokens
    told: str  # why


def best_plan(
    sessions: Sequence[Session],
    budgets: Sequence[SessionBudget],
    load: Load,
    times: LoadTimes,
    sizes: NDArray[np.int64],
    few: int,
) -> Plan:
    """Compares trees of each of these sizes, for those that gain most by them, with plain decoding.

    Args:
        sessions: that may draft; S of them, with their `budgets`.
        load: they are under; its sessions include those that may not.
        times: what steps take.
        sizes: [R] int64, nodes, ascending.
        few: sessions that may draft whatever it takes; more only where a step gets little longer by it.
    """
    count, plain_tokens = load.sessions, load.sessions + load.reading
    means = means_beside([each.gains for each in budgets], [each.kind.gains.means() for each in budgets])
    brought, nodes = means.tokens[:, : len(sizes)], means.nodes[:, : len(sizes)]  # [S, R]
    seconds = times.seconds(count, plain_tokens + int(sizes[-1]) * len(sessions))
    row_s = float(seconds[1])
    rows = sum(_overlaps(each) for each in sessions)  # rounds of two passes, each with a token of its own
    order = np.argsort(-brought, axis=0, kind="stable")  # [S, R] those that gain most first
    gained, verified = (np.take_along_axis(each, order, axis=0).cumsum(axis=0) for each in (brought, nodes))
    pass_s = times.slowed(count) * np.interp(plain_tokens + verified, np.arange(len(seconds)), seconds)
    wait_s = _exposed(sessions, load, times, sizes, row_s)
    tokens, step_s = count + rows + gained, pass_s + rows * row_s + wait_s  # [S, R], for the first 1 to S of them
    rates = tokens / step_s
    plain = count / float(seconds[plain_tokens])
    drafting, size = (int(each) for each in np.unravel_index(np.argmax(rates), rates.shape))
    size = int(np.argmax(rates[drafting] >= (1 - SLACK) * rates[drafting, size]))
    lost_s = max(float((step_s - tokens / plain)[drafting, size]), 0.0)
    drafts = np.zeros(len(sessions), dtype=bool)
    told = (
        f"{int(sizes[size])} nodes for {drafting + 1} of {count} sessions: {rates[drafting, size]:.1f} tokens/s "
        f"with {gained[drafting, size] / (drafting + 1):.2f} accepted and {wait_s[size] * 1e3:.1f} ms of "
        f"waiting; plain {plain:.1f}"
    )
    lead = float(rates[drafting, size]) / plain
    if lead < 1 + LEAD:
        told = f"plain pays more. {told}"
    else:
        safe = int(np.sum(step_s[:, size] <= (1 + RISK) * count / plain))
        drafts[order[: min(drafting + 1, max(few, safe)), size]] = True
    return Plan(int(sizes[size]), drafts, lead, lost_s, told)


def _exposed(
    sessions: Sequence[Session], load: Load, times: LoadTimes, sizes: NDArray[np.int64], row_s: float
) -> NDArray[np.float64]:
    """[R] seconds that all wait for trees of these sizes; nothing where nobody would wait."""
    waiting = [each for each in sessions if not each.drafting.suspended and not _never_waits(each, load)]
    if waiting and all(_overlaps(each) for each in waiting):
        longest = max((each.pace.draft_s or 0.0) for each in waiting)
        return np.full(len(sizes), max(longest - row_s, 0.0))
    return times.waits(load.sessions).at(sizes) if waiting else np.zeros(len(sizes))


def _overlaps(session: Session) -> bool:
    """True if a row pass runs while its tree is drafted."""
    wish = session.request.wish
    rule = session.pace.rule if wish.selection is Selection.AUTO else wish.selection
    return rule in (Selection.DRAW_FIRST, Selection.RERANK)


def _never_waits(session: Session, load: Load) -> bool:
    return session.request.wish.wait is WaitFor.NEVER and load.sessions == 1
