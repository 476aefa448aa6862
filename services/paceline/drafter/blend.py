"""What both members of a fused proposer say below a session's context, as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paceline.drafter.known_rows import ContextHash, KnownRows
from paceline.drafter.model_rows import CANDIDATES
from paceline.drafter.proposer import DraftOptions, children, known_children, likeliest
from paceline.drafter.said import Heard, Said, said_of
from paceline.drafter.trust import SessionTrust
from paceline.speculation.propose import NO_CANDIDATES, Candidates
from paceline.speculation.rows import Row
from paceline.speculation.select import Path
from paceline.speculation.tree import ROOT, DraftTree

MIN_PROB = 1e-3  # tokens that no member gives more are not looked at


@dataclass(frozen=True, slots=True)
class Members:
    """What they say of the next token behind a path, for the context as it stands."""

    suffix: Callable[[Path], Heard]
    model: Mapping[Path, Candidates]  # only where it has looked


@dataclass(slots=True)
class _Node:
    """The next token behind a path."""

    candidates: Candidates
    sure: float  # probability of the most probable one, before any noise; 1 where the target's row is known
    said: Said | None  # None where the target's row is known
    probs: dict[int, float] | None = None  # of the candidates, made when it is first needed


@dataclass(slots=True)
class Blend:
    """Merged candidates of one session."""

    options: DraftOptions
    trust: SessionTrust
    known: KnownRows
    hash: ContextHash
    length: int  # of the context
    min_prob: float  # tokens of ranked trees that no member gives more are left out; coupled trees may lift any
    _nodes: dict[Path, _Node] = field(default_factory=dict)
    _root: Row | None = None  # the target's row at the context, if it was told

    def told(self, row: Row) -> None:
        """The target's row at the context has come."""
        self._root = row
        self._nodes.pop((), None)

    def advance(self, tokens: Sequence[int]) -> None:
        """The context has grown: which tokens were right is learned, as far as was asked."""
        for depth, token in enumerate(tokens):
            node = self._nodes.get(tuple(tokens[:depth]))
            if node is None:
                break
            if node.said is not None:
                self.trust.learn(node.said, depth + 1, token)
        self.hash.append(tokens)
        self.length += len(tokens)
        self._nodes, self._root = {}, None

    def forget(self, paths: Iterable[Path]) -> None:
        """Members have more to say behind these paths."""
        for path in paths:
            self._nodes.pop(path, None)

    def candidates(self, path: Path, members: Members, width: int) -> Candidates:
        """The `width` best candidates behind a path, by the session's kind of proposal; none behind an end token."""
        if path and path[-1] in self.options.eos_token_ids:
            return NO_CANDIDATES
        if path not in self._nodes:
            self._nodes[path] = self._node(path, members, width)
        return self._nodes[path].candidates

    def sure(self, path: Path) -> float:
        """Probability of the most probable token behind a path whose candidates were asked for; else 0."""
        node = self._nodes.get(path)
        return 0.0 if node is None else node.sure

    def is_known(self, path: Path) -> bool:
        """True if the target's own row behind the path is what is drafted with."""
        node = self._nodes.get(path)
        return node is not None and node.said is None

    def value(self, tree: DraftTree, members: Members, width: int) -> float:
        """Accepted tokens that are expected of a tree, also of one that was made of other candidates."""
        paths: list[Path] = []
        reached: list[float] = []
        for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
            above: Path = () if parent == ROOT else paths[parent]
            paths.append((*above, token))
            self.candidates(above, members, width)
            reached.append((1.0 if parent == ROOT else reached[parent]) * _prob(self._nodes[above], token))
        return sum(reached)

    def _node(self, path: Path, members: Members, width: int) -> _Node:
        position = self.length + len(path)
        row = self._root if not path and self._root is not None else self.known.find(self.hash, path)
        if row is not None:
            return _Node(known_children(self.options, row, position, width), 1.0, None)
        least, most = (MIN_PROB, CANDIDATES) if self.options.coupled else (self.min_prob, width)
        said = said_of(members.suffix(path), members.model.get(path), least, most)
        probs = self.trust.probs(said, len(path) + 1)
        if self.options.coupled and probs:
            tokens: NDArray[np.int64] = np.array(said.tokens, dtype=np.int64)
            found = children(self.options, tokens, np.log(probs), position, width)
        else:
            found = likeliest(zip(said.tokens, probs, strict=True), width)
        return _Node(found, max(probs, default=0.0), said)


def _prob(node: _Node, token: int) -> float:
    if node.probs is None:
        found = node.candidates
        node.probs = dict(zip(found.tokens.tolist(), np.exp(found.log_probs).tolist(), strict=True))
    return node.probs.get(token, 0.0)
