"""Which proposals, verifications and selection rules go together: the table of THEORY 6, cell by cell."""

from __future__ import annotations

import pytest

from paceline.speculation.modes import Proposal, Selection, refusal

RANKED, COUPLED, SAMPLED = Proposal.RANKED, Proposal.COUPLED, Proposal.SAMPLED
# draft, retain, rerank, draw_first, auto; + legal, p refused for the proposal, s refused for the selection
TABLE = {
    (RANKED, False, False): "+++++",
    (COUPLED, False, False): "+++++",
    (SAMPLED, False, False): "+ss++",
    (RANKED, True, False): "+++++",
    (COUPLED, True, False): "ppppp",
    (SAMPLED, True, False): "+ss++",
    (RANKED, False, True): "+++++",
    (COUPLED, False, True): "ppppp",
    (SAMPLED, False, True): "ppppp",
    (RANKED, True, True): "+++++",
    (COUPLED, True, True): "ppppp",
    (SAMPLED, True, True): "ppppp",
}
RULES = [Selection.DRAFT, Selection.RETAIN, Selection.RERANK, Selection.DRAW_FIRST, Selection.AUTO]


@pytest.mark.parametrize(("combination", "cells"), TABLE.items())
def test_the_table(combination: tuple[Proposal, bool, bool], cells: str) -> None:
    proposal, nucleus, greedy = combination
    for rule, cell in zip(RULES, cells, strict=True):
        found = refusal(proposal, rule, nucleus=nucleus, greedy=greedy)
        assert (found is None) == (cell == "+")
        if found is not None:
            field, value = ("proposal", proposal) if cell == "p" else ("selection", rule)
            assert (found.field, found.value) == (field, value)
            assert found.allowed
            assert found.remedy.endswith(".")


def test_the_table_is_whole() -> None:
    assert len(TABLE) == len(Proposal) * 2 * 2
    assert set(RULES) == set(Selection)
