"""Asking proposers for trees."""

from __future__ import annotations

from paceline.drafter.proposer import Proposer, Want
from paceline.speculation.tree import DraftTree


def grown(made: Proposer, *wants: Want) -> list[DraftTree | None]:
    """Trees as far as they go without more of the context being read; None where it is not read to its end."""
    found: dict[int, DraftTree | None] = {}
    while missing := [want for want in wants if want.session not in found]:
        for want, growth in zip(missing, made.propose(missing), strict=True):
            if growth is None or not growth.growing:
                found[want.session] = None if growth is None else growth.tree
    return [found[want.session] for want in wants]
