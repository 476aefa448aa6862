"""The table model: right rows, real books, and failures that leave them whole."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paceline.runtime.kv import OutOfPages
from paceline.runtime.plan import PassPlan, Segment
from paceline.runtime.toy import ToyRunner
from paceline.speculation.tree import DraftTree

TABLE = np.array([[0.5, 0.5, 0.0], [0.1, 0.2, 0.7], [0.0, 0.0, 1.0]])


def test_rows_are_those_of_the_last_token() -> None:
    toy = ToyRunner(TABLE)
    one, other = toy.kv.open(), toy.kv.open()
    tree = DraftTree.build([2, 0, 1], [-1, -1, 1])
    plan = PassPlan((Segment.chain(one, [0, 1], last_row=True), Segment.verification(other, 1, tree)))
    rows = toy.execute(plan)
    for segment, node, last in ((0, 1, 1), (1, 0, 1), (1, 1, 2), (1, 2, 0), (1, 3, 1)):
        assert torch.softmax(rows.logits(segment, node).double(), 0).numpy() == pytest.approx(TABLE[last], abs=1e-7)
    assert (rows.tokens, rows.padded) == (6, 6)
    with pytest.raises(KeyError):
        rows.logits(0, 0)


def test_padding_is_likelier_than_any_token_so_that_forgetting_it_shows() -> None:
    toy = ToyRunner(TABLE, vocab_padded=8)
    assert (toy.info.vocab_size, toy.info.vocab_padded) == (3, 8)
    rows = toy.execute(PassPlan((Segment.chain(toy.kv.open(), [1], last_row=True),)))
    assert int(rows.logits(0, 0).argmax()) >= 3


def test_a_tree_that_grows_over_passes() -> None:
    toy = ToyRunner(TABLE)
    sequence = toy.kv.open()
    toy.execute(PassPlan((Segment.chain(sequence, [0, 1], last_row=True),)))
    more = Segment(sequence, np.array([2], np.int32), np.array([-1, 0, 1], np.int32), (2,))
    rows = toy.execute(PassPlan((more,)))
    assert torch.softmax(rows.logits(0, 2).double(), 0).numpy() == pytest.approx(TABLE[2], abs=1e-7)
    toy.kv.keep(sequence, [0, 2])
    assert toy.kv.length(sequence) == 2


@pytest.mark.parametrize("error", [RuntimeError("broken"), torch.OutOfMemoryError("no memory")])
def test_a_failure_leaves_the_kv_as_it_was_and_the_others_can_be_run_alone(error: Exception) -> None:
    bad = -1

    def before(plan: PassPlan) -> None:
        if any(segment.sequence == bad for segment in plan.segments):
            raise error

    toy = ToyRunner(TABLE, before_execute=before)
    sequences = [toy.kv.open(reserve_tokens=8) for _ in range(3)]
    for sequence in sequences:
        toy.execute(PassPlan((Segment.chain(sequence, [0, 1], last_row=False),)))
        toy.kv.keep(sequence, range(2))
    bad, used = sequences[1], toy.kv.pages_used
    segments = [Segment.chain(sequence, [2], last_row=True) for sequence in sequences]
    with pytest.raises(type(error)):
        toy.execute(PassPlan(tuple(segments)))
    toy.kv.check_integrity()
    assert toy.kv.pages_used == used
    assert [toy.kv.length(sequence) for sequence in sequences] == [2, 2, 2]
    with pytest.raises(ValueError, match="ascend"):
        toy.kv.keep(sequences[0], [0])
    for sequence, segment in zip(sequences, segments, strict=True):
        if sequence != bad:
            toy.execute(PassPlan((segment,)))
            toy.kv.keep(sequence, [0])
    assert [toy.kv.length(sequence) for sequence in sequences] == [3, 2, 3]


def test_a_pass_that_does_not_fit_leaves_the_others_whole() -> None:
    toy = ToyRunner(TABLE, pages=2, page_size=4)
    one, other = toy.kv.open(reserve_tokens=4), toy.kv.open()
    with pytest.raises(OutOfPages):
        toy.execute(PassPlan((Segment.chain(one, [0], last_row=True), Segment.chain(other, [0] * 9, last_row=True))))
    toy.kv.check_integrity()
    assert toy.kv.pages_used == 1
    with pytest.raises(ValueError, match="ascend"):
        toy.kv.keep(one, [0])


def test_a_pass_over_a_sequence_that_is_gone() -> None:
    toy = ToyRunner(TABLE)
    gone, here = toy.kv.open(), toy.kv.open()
    toy.kv.release(gone)
    with pytest.raises(KeyError):
        toy.execute(PassPlan((Segment.chain(here, [0], last_row=True), Segment.chain(gone, [0], last_row=True))))
    with pytest.raises(ValueError, match="ascend"):
        toy.kv.keep(here, [0])


def test_it_bears_many_passes() -> None:
    """As many as a test of the law draws: 20 000 rounds in 40 sessions, whose pages all come back."""
    toy = ToyRunner(TABLE, pages=40 * 32, page_size=16)
    sequences = [toy.kv.open(reserve_tokens=505) for _ in range(40)]
    for _ in range(500):
        toy.execute(PassPlan(tuple(Segment.chain(each, [1], last_row=True) for each in sequences)))
        for each in sequences:
            toy.kv.keep(each, [0])
    toy.kv.check_integrity()
    assert {toy.kv.length(each) for each in sequences} == {500}
    for each in sequences:
        toy.kv.release(each)
    assert toy.kv.pages_used == 0
