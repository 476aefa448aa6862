"""The draft nodes of one round."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Grant:
    """What a session may ask its drafter for in a round, and why."""

    nodes: int  # of the tree that is waited for; 0: the round is plain
    reason: str = ""  # where the server chose; empty where the request named the number
    probe: int = 0  # nodes of a tree that is asked for without waiting, in a plain round
    opens: bool = True  # whether the drafter hears of the session though no tree is wanted yet, to read its prompt
