"""Draft trees: checks at the border, paths, re-rooting."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.speculation.tree import ROOT, DraftTree, TreeFault

#        root
#       5    6
#      7 8   9
#      4
TREE = DraftTree.build([5, 6, 7, 8, 9, 4], [-1, -1, 0, 0, 1, 2], [-0.1, -2.0, -0.3, -0.4, -0.5, -0.6])


def checked(tokens: list[int], parents: list[int], logs: list[float] | None = None, **limits: int) -> DraftTree:
    return DraftTree.checked(
        np.asarray(tokens, np.int32),
        np.asarray(parents, np.int32),
        None if logs is None else np.asarray(logs, np.float32),
        **{"vocab_size": 10, "max_nodes": 8, "max_depth": 4, **limits},
    )


def test_depths_paths_and_children() -> None:
    assert TREE.depths.tolist() == [1, 1, 2, 2, 2, 3]
    assert TREE.path(5) == [0, 2, 5]
    assert TREE.path_tokens(5) == [5, 7, 4]
    assert TREE.children(ROOT) == [0, 1]
    assert TREE.child(0, 8) == 3
    assert TREE.child(0, 9) is None


def test_below_re_roots_along_a_path() -> None:
    below = TREE.below([5])
    assert below is not None
    assert below.tokens.tolist() == [7, 8, 4]
    assert below.parents.tolist() == [-1, -1, 0]
    assert below.log_probs == pytest.approx([-0.3, -0.4, -0.6])
    assert TREE.below([]) is TREE
    assert TREE.below([5, 9]) is None
    leaf = TREE.below([6, 9])
    assert leaf is not None
    assert len(leaf) == 0


def test_leading_and_chosen_parts_are_trees() -> None:
    assert TREE.first(3).tokens.tolist() == [5, 6, 7]
    kept = TREE.keep([0, 2, 5])
    assert kept.tokens.tolist() == [5, 7, 4]
    assert kept.parents.tolist() == [-1, 0, 1]


@pytest.mark.parametrize(
    ("tokens", "parents", "logs", "limits", "says"),
    [
        ([1, 2], [-1], None, {}, "differ in length"),
        ([1], [-1], [0.0, 0.0], {}, "differ in length"),
        ([10], [-1], None, {}, "node 0: token 10, allowed: 0 to 9"),
        ([-1], [-1], None, {}, "token -1"),
        ([1, 2], [-1, 1], None, {}, "node 1: parent 1"),  # its own parent
        ([1, 2], [1, -1], None, {}, "node 0: parent 1"),  # parent after child
        ([1], [-2], None, {}, "parent -2"),
        ([1, 1], [-1, -1], None, {}, "occurs twice"),
        ([1], [-1], [float("nan")], {}, "finite"),
        ([1], [-1], [0.5], {}, "at most 0"),
        ([1, 2, 3], [-1, 0, 1], None, {"max_depth": 2}, "depth 3"),
        ([1, 2, 3], [-1, -1, -1], None, {"max_nodes": 2}, "3 nodes"),
    ],
)
def test_a_tree_that_breaks_a_rule_is_refused_by_name(
    tokens: list[int], parents: list[int], logs: list[float] | None, limits: dict[str, int], says: str
) -> None:
    with pytest.raises(TreeFault, match=says):
        checked(tokens, parents, logs, **limits)


def test_good_trees_pass() -> None:
    assert len(checked([], [])) == 0
    assert checked([1, 2, 1], [-1, -1, 0], [-0.1, 0.0, -3.0]).depths.tolist() == [1, 1, 2]
