"""Expected acceptance of a tree under given rows: exact, with no draw in it (THEORY 3)."""

from __future__ import annotations

from collections.abc import Callable

from paceline.speculation.select import Path
from paceline.speculation.tree import ROOT, DraftTree

Chance = Callable[[Path], float]  # of the path's last token, given the context and the tokens before it


def expected_accepted(tree: DraftTree, chance: Chance) -> float:
    """Tokens that sample-match accepts in the mean: the sum over nodes of the target's probability of their path."""
    paths: list[Path] = []
    reached: list[float] = []
    for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
        above: Path = () if parent == ROOT else paths[parent]
        before = 1.0 if parent == ROOT else reached[parent]
        paths.append((*above, token))
        reached.append(before * chance(paths[-1]) if before else 0.0)
    return sum(reached)


def walked(tree: DraftTree, reply: list[int]) -> list[int]:
    """Nodes that sample-match accepts where plain decoding goes on with `reply`."""
    nodes: list[int] = []
    node = ROOT
    for token in reply:
        child = tree.child(node, token)
        if child is None:
            break
        nodes.append(child)
        node = child
    return nodes


def no_deeper(tree: DraftTree, depth: int) -> DraftTree:
    """The nodes down to `depth`."""
    return tree.keep([node for node, each in enumerate(tree.depths.tolist()) if each <= depth])
