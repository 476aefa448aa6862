"""The kinds of cases of the law study, and what the implemented rules give for each, by walking every outcome.

No figure has a formula here: verification, nucleus, recursion, retained rows and tree selection are driven as a request
drives them, in float64, so that a rule that is implemented wrongly is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.speculation.nucleus import Ledger, Nucleus
from paceline.speculation.propose import Candidates, ranked
from paceline.speculation.rows import Row, nucleus
from paceline.speculation.select import Path, best_first, rerank
from paceline.speculation.shape import sampled_tree
from paceline.speculation.tree import ROOT, DraftTree
from paceline.speculation.verify import Relaxing, retained, verify
from paceline.study.law_cases import Case
from paceline.study.outcomes import ScriptedChoices, ScriptedProposal, law, rounds, total_variation

# What a rule gave. Floats and arrays of floats are compared as numbers, all else is equal or not.
Found = float | NDArray[np.float64] | int | bool | frozenset[int] | list[Any] | Mapping[str, Any]
Dense = NDArray[np.float64]  # [V] probabilities by token id


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of case, told by its keys."""

    name: str
    given: tuple[str, ...]
    stated: tuple[str, ...]  # results to compare
    run: Callable[[Case], Iterable[tuple[str, Found]]]  # (key, result); a key may come more than once


class Emission(NamedTuple):
    """Outcome of verifying one position."""

    token: int
    accepted: bool  # it is a draft token
    relaxed: bool  # only the nucleus rule accepted it
    spent: float  # by the ledger


def siblings_of(proposal: Dense, count: int, choices: ScriptedChoices) -> DraftTree:
    """A sampled tree of one level, its siblings outcomes of `choices`."""
    token_ids = np.flatnonzero(proposal > 0).astype(np.int32)
    row = ScriptedProposal(token_ids, proposal[token_ids], choices)
    return sampled_tree(star(range(count)), lambda _: row, lambda depth: depth)


def star(tokens: Iterable[int]) -> DraftTree:
    """A ranked tree of one level."""
    children = list(tokens)
    return DraftTree.build(children, [ROOT] * len(children))


def emission(tree: DraftTree, row: Row, nucleus_row: Row, mass: float, choices: ScriptedChoices) -> Emission:
    """One position of a reply: what verification emits for the root of `tree`."""
    relaxing = Relaxing(Nucleus(mass), Ledger(), 0, lambda _: row, lambda _: nucleus(nucleus_row, mass))
    walk = verify(tree, lambda _: row, choices, 0, stops=lambda _: True, relaxing=relaxing)
    return Emission(walk.tokens[0], bool(walk.accepted), bool(walk.relaxed), walk.ledger.spent)


def mean(emissions: Mapping[Emission, float], value: Callable[[Emission], float]) -> float:
    """Expectation of `value`."""
    return sum(value(each) * probability for each, probability in emissions.items())


def dense(emissions: Mapping[Emission, float], vocab_size: int) -> Dense:
    """Law of the token, [vocab_size]."""
    probs = np.zeros(vocab_size)
    for each, probability in emissions.items():
        probs[each.token] += probability
    return probs


def one_candidate(case: Case) -> Iterator[tuple[str, Found]]:
    """One child drawn from the draft row. What the ledger is expected to spend is the total variation itself."""
    target, mass = case.probs("target_probs"), case.fraction("nucleus_mass")
    draft, row = case.probs("draft_probs", len(target)), Row.from_dense(target)
    found = law(lambda choices: emission(siblings_of(draft, 1, choices), row, row, mass, choices))
    yield "nucleus", frozenset(nucleus(row, mass).token_ids.tolist())
    yield from _position(found, target)


def ranked_children(case: Case) -> Iterator[tuple[str, Found]]:
    """Ranked children, so the ledger spends the total variation itself."""
    target, mass = case.probs("target_probs"), case.fraction("nucleus_mass")
    tree, row = star(case.tokens("children", len(target))), Row.from_dense(target)
    yield from _position(law(lambda choices: emission(tree, row, row, mass, choices)), target)


def _position(found: Mapping[Emission, float], target: Dense) -> Iterator[tuple[str, Found]]:
    output = dense(found, len(target))
    yield "accept_probability", mean(found, lambda each: each.accepted)
    yield "output_law", output
    yield "total_variation", total_variation(dict(enumerate(output.tolist())), dict(enumerate(target.tolist())))
    yield "total_variation", mean(found, lambda each: each.spent)


def sampled_siblings(case: Case) -> Iterator[tuple[str, Found]]:
    """Several children drawn from the draft row without replacement."""
    target, mass = case.probs("target_probs"), case.fraction("nucleus_mass")
    draft, count = case.probs("draft_probs", len(target)), case.integer("candidates", 1, len(target))
    row = Row.from_dense(target)
    found = law(lambda choices: emission(siblings_of(draft, count, choices), row, row, mass, choices))
    yield "accept_probability", mean(found, lambda each: each.accepted)
    yield "output_law", dense(found, len(target))
    yield "relax_probability", mean(found, lambda each: each.relaxed)
    yield "relax_probability", mean(found, lambda each: each.spent)  # the ledger's own account of it


def greedy(case: Case) -> Iterator[tuple[str, Found]]:
    """Temperature 0: the served row is one-hot, the nucleus is taken on another."""
    probs, mass = case.probs("nucleus_probs"), case.fraction("nucleus_mass")
    tree, good = star(case.tokens("children", len(probs))), Row.from_dense(probs)
    served = Row.one_hot(case.integer("greedy_token", 0, len(probs) - 1))
    for each in law(lambda choices: emission(tree, served, good, mass, choices)):
        yield "emitted", each.token
        yield "accepted", each.accepted
        yield "relaxed", each.relaxed
        yield "deviation", each.spent


def retained_row(case: Case) -> Iterator[tuple[str, Found]]:
    """The row carried on when the drawn token is not emitted; zeros where none is."""
    target = case.probs("target_probs")
    row = retained(Row.from_dense(target), star(case.tokens("children", len(target))), ROOT)
    yield "retained_row", np.zeros(len(target)) if row is None else row.dense(len(target)).astype(np.float64)


class Reply(NamedTuple):
    """A reply in progress, with the context's last token in front, and its ledger."""

    tokens: tuple[int, ...]
    spent: float
    relaxed: int


def sequence(case: Case) -> Iterator[tuple[str, Found]]:
    """A reply whose positions are each verified with one sampled candidate, beside plain decoding."""
    target, mass, length = case.table("target_table"), case.fraction("nucleus_mass"), case.integer("tokens", 1)
    draft, start = case.table("draft_table", len(target)), case.integer("context_token", 0, len(target) - 1)
    rows = [Row.from_dense(probs) for probs in target]

    def drafted(reply: Reply, choices: ScriptedChoices) -> Reply:
        row, index = rows[reply.tokens[-1]], len(reply.tokens) - 1
        ledger = Ledger(reply.spent, reply.relaxed)
        relaxing = Relaxing(Nucleus(mass), ledger, index, lambda _: row, lambda _: nucleus(row, mass))
        tree = siblings_of(draft[reply.tokens[-1]], 1, choices)
        walk = verify(tree, lambda _: row, choices, index, stops=lambda _: True, relaxing=relaxing)
        return Reply((*reply.tokens, *walk.tokens), walk.ledger.spent, walk.ledger.relaxed)

    def plain(reply: Reply, choices: ScriptedChoices) -> Reply:
        walk = verify(DraftTree.empty(), lambda _: rows[reply.tokens[-1]], choices, len(reply.tokens) - 1)
        return reply._replace(tokens=(*reply.tokens, *walk.tokens))

    replies, exact = (
        rounds(step, Reply((start,), 0.0, 0), lambda reply: len(reply.tokens) > length) for step in (drafted, plain)
    )
    tokens: dict[tuple[int, ...], float] = {}
    for reply, probability in replies.items():
        tokens[reply.tokens] = tokens.get(reply.tokens, 0.0) + probability
    reference = {reply.tokens: probability for reply, probability in exact.items()}
    yield "sequence_total_variation", total_variation(tokens, reference)
    yield "expected_sum_of_eps", sum(reply.spent * probability for reply, probability in replies.items())


def selection(case: Case) -> Iterator[tuple[str, Found]]:
    """Trees of one round under each rule, over order-1 tables."""
    target = case.table("target_table")
    draft, start = case.table("draft_table", len(target)), case.integer("context_token", 0, len(target) - 1)
    budget, depth = case.integer("budget", 1), case.integer("max_depth", 1)
    if not isinstance(case.values["has_ties"], bool):
        raise case.fault("has_ties", "true or false")
    rows = [Row.from_dense(probs) for probs in target]

    def grown(last: int, budget: int, depth: int, first: Dense | None = None) -> DraftTree:
        def expand(path: Path) -> Candidates:
            probs = first if first is not None and not path else draft[path[-1] if path else last]
            likely = np.flatnonzero(probs > 0)
            return ranked(likely, np.log(probs[likely]), len(likely))

        return best_first(expand, budget, depth)

    def accepted(tree: DraftTree, last: int, choices: ScriptedChoices) -> int:
        at = lambda node: rows[last if node == ROOT else int(tree.tokens[node])]  # noqa: E731
        return len(verify(tree, at, choices, 0).accepted)

    def result(tree: DraftTree, last: int = start) -> dict[str, Found]:
        return {"paths": _paths(tree), "expected_accepted": _mean(lambda choices: accepted(tree, last, choices))}

    drafted, candidates = grown(start, budget, depth), grown(start, 3 * budget, depth)
    yield "draft", result(drafted)
    yield "rerank", {"candidates": _paths(candidates), **result(rerank(candidates, rows[start], budget))}
    yield "rerank_unlimited", result(grown(start, budget, depth, first=target[start]))
    below = {token: grown(token, budget - 1, depth - 1) for token in range(len(target))}
    drawn = [result(below[token], token) for token in _drawn(case, len(target))]
    yield (
        "draw_first",
        [
            {"drawn": token, "paths_below": each["paths"], "expected_accepted_below": each["expected_accepted"]}
            for token, each in zip(_drawn(case, len(target)), drawn, strict=True)
        ],
    )

    def draw_first(choices: ScriptedChoices) -> int:
        token = choices.draw(rows[start], 0)
        return 1 + accepted(below[token], token, choices)

    yield "draw_first_expected_with_drawn", _mean(draw_first)


def _drawn(case: Case, vocab_size: int) -> list[int]:
    entries = case.values["draw_first"]
    objects = isinstance(entries, list) and all(isinstance(each, dict) and "drawn" in each for each in entries)
    if not objects or not entries:
        raise case.fault("draw_first", 'a list of objects with "drawn", at least one')
    tokens = {"draw_first.drawn": [each["drawn"] for each in entries]}
    return Case(case.file, case.index, tokens).tokens("draw_first.drawn", vocab_size)


def _paths(tree: DraftTree) -> list[list[int]]:
    return [tree.path_tokens(node) for node in range(len(tree))]


def _mean(run: Callable[[ScriptedChoices], int]) -> float:
    return sum(value * probability for value, probability in law(run).items())


KINDS = (
    Kind(
        "one candidate",
        ("target_probs", "draft_probs", "nucleus_mass"),
        ("nucleus", "accept_probability", "output_law", "total_variation"),
        one_candidate,
    ),
    Kind(
        "ranked children",
        ("target_probs", "children", "nucleus_mass"),
        ("accept_probability", "output_law", "total_variation"),
        ranked_children,
    ),
    Kind(
        "sampled siblings",
        ("target_probs", "draft_probs", "candidates", "nucleus_mass"),
        ("accept_probability", "output_law", "relax_probability"),
        sampled_siblings,
    ),
    Kind(
        "temperature 0",
        ("nucleus_probs", "children", "nucleus_mass", "greedy_token"),
        ("emitted", "accepted", "relaxed", "deviation"),
        greedy,
    ),
    Kind("retained row", ("target_probs", "children"), ("retained_row",), retained_row),
    Kind(
        "sequence",
        ("target_table", "draft_table", "nucleus_mass", "context_token", "tokens"),
        ("sequence_total_variation", "expected_sum_of_eps"),
        sequence,
    ),
    Kind(
        "tree selection",
        ("target_table", "draft_table", "context_token", "max_depth", "budget", "has_ties"),
        ("draft", "rerank", "rerank_unlimited", "draw_first", "draw_first_expected_with_drawn"),
        selection,
    ),
)
