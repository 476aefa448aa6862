"""A pass as data: where nodes are, and what cannot be a pass."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.runtime.masks import seen
from paceline.runtime.plan import PassPlan, Segment
from paceline.speculation.tree import DraftTree


def test_a_prefill_chunk_is_a_path_of_which_the_last_row_may_be_wanted() -> None:
    chunk = Segment.chain(3, [5, 6, 7], last_row=True)
    assert (chunk.sequence, chunk.tokens.tolist(), chunk.parents.tolist(), chunk.rows) == (
        3,
        [5, 6, 7],
        [-1, 0, 1],
        (2,),
    )
    assert Segment.chain(3, [5, 6, 7], last_row=False).rows == ()


def test_a_tree_hangs_below_the_pending_token() -> None:
    tree = Segment.verification(1, 9, DraftTree.build([4, 5, 6], [-1, -1, 1]))
    assert tree.tokens.tolist() == [9, 4, 5, 6]
    assert tree.parents.tolist() == [-1, 0, 0, 2]
    assert tree.rows == (0, 1, 2, 3)
    assert tree.tokens.dtype == tree.parents.dtype == np.int32


@pytest.mark.parametrize(
    ("parents", "base", "expected"),
    [
        ([-1], 0, [0]),
        ([-1, 0, 1, 2], 0, [0, 1, 2, 3]),
        ([-1, -1, 0, 0, 1, 4], 0, [0, 0, 1, 1, 1, 2]),
        ([-1, 0, 1, 2], 2, [2, 3]),
        ([-1, -1, 0, 2, 1], 3, [2, 1]),
    ],
)
def test_depths_below_the_committed_tokens(parents: list[int], base: int, expected: list[int]) -> None:
    count = len(parents) - base
    segment = Segment(1, np.zeros(count, np.int32), np.asarray(parents, np.int32), ())
    assert segment.base == base
    assert [each.bit_count() - 1 for each in seen(segment.parents)[base:]] == expected


def test_a_sequence_has_one_segment_a_pass() -> None:
    segment = Segment.chain(1, [2], last_row=True)
    with pytest.raises(ValueError, match="one segment"):
        PassPlan((segment, Segment.chain(2, [2], last_row=True), segment))
    assert PassPlan((segment, Segment.chain(2, [3, 4], last_row=True))).tokens == 3
