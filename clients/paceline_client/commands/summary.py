"""A reply's figures: for people, and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline_client.replies import Finish, Reply, Speculation


def summary_lines(finish: Finish, *, nucleus: bool = False) -> list[str]:
    """A few short lines on a finished reply.

    Args:
        finish: its end.
        nucleus: whether nucleus verification was asked for; what it did is told then.
    """
    tokens, timings = finish.usage.completion_tokens, finish.timings
    ended = f'stop string "{finish.stop_match}"' if finish.stop_match else finish.reason
    lines = [
        f"{tokens} tokens ({ended}), {rate(finish)}, first token after {timings.ttft_s:.2f} s,"
        f" {finish.usage.prompt_tokens} prompt tokens, seed {finish.seed}",
        f"{finish.speculation.rounds} rounds, {accepted_per_round(finish.speculation):.2f} accepted per round"
        f" ({finish.speculation.accepted} of {finish.speculation.drafted} drafted), fallbacks:"
        f" {fallbacks(finish.speculation)}",
    ]
    if finish.speculation.selections:
        lines.append(_selections(finish.speculation))
    if finish.speculation.budgets:
        lines.append(f"rounds by budget: {counts(finish.speculation.budgets)}")
    if nucleus:
        lines.append(_relaxations(finish.speculation))
    return lines


def _selections(speculation: Speculation) -> str:
    parts = [f"rounds by rule: {counts(speculation.selections)}"]
    if speculation.row_passes or speculation.row_cache_hits:
        parts.append(f"{speculation.row_passes} row passes, {speculation.row_cache_hits} rows from the cache")
    if speculation.tokens_held_back:
        parts.append(f"{speculation.tokens_held_back} drawn tokens held back")
    return ", ".join(parts)


def _relaxations(speculation: Speculation) -> str:
    limits = counts(speculation.limits_applied) or "none"
    return (
        f"{speculation.relaxed_tokens} tokens relaxed, deviation {speculation.deviation_spent:.4g} spent,"
        f" limits applied: {limits}"
    )


def rate(finish: Finish) -> str:
    """Tokens per second after the first; the wait for the first is reported by itself."""
    decode_s = finish.timings.total_s - finish.timings.ttft_s
    after_first = finish.usage.completion_tokens - 1
    return f"{after_first / decode_s:.1f} tokens/s" if after_first > 0 and decode_s > 0 else "- tokens/s"


def accepted_per_round(speculation: Speculation) -> float:
    """Mean draft tokens accepted per round; 0 where there was no round."""
    return speculation.accepted / speculation.rounds if speculation.rounds else 0.0


def fallbacks(speculation: Speculation) -> str:
    """Rounds decoded plainly although a tree was wanted, by reason."""
    return counts(speculation.fallbacks) or "none"


def counts(by_name: Mapping[str, int] | Mapping[int, int]) -> str:
    """Counts by name or number in one line; empty for none."""
    return ", ".join(f"{name} {n}" for name, n in sorted(by_name.items()))


def reply_json(reply: Reply) -> dict[str, Any]:
    """The object that `--json` prints."""
    return {"text": reply.text, "token_ids": list(reply.token_ids), **finish_json(reply.finish)}


def replies_json(replies: Sequence[Reply]) -> dict[str, Any]:
    """The object that `--json` prints of several replies to one prompt. `usage` is theirs together."""
    shared, choices = ("usage", "seed", "model"), []
    for reply in replies:
        own = {name: value for name, value in reply_json(reply).items() if name not in shared}
        choices.append({"index": reply.finish.index, **own})
    first = replies[0].finish
    completion_tokens = sum(reply.finish.usage.completion_tokens for reply in replies)
    return {
        "choices": choices,
        "usage": {"prompt_tokens": first.usage.prompt_tokens, "completion_tokens": completion_tokens},
        "seed": first.seed,
        "model": first.model,
    }


def finish_json(finish: Finish) -> dict[str, Any]:
    """The part of it that is known at the end only."""
    return {
        "finish_reason": finish.reason,
        "stop_match": finish.stop_match or None,
        "usage": {
            "prompt_tokens": finish.usage.prompt_tokens,
            "completion_tokens": finish.usage.completion_tokens,
        },
        "speculation": {
            "rounds": finish.speculation.rounds,
            "drafted": finish.speculation.drafted,
            "accepted": finish.speculation.accepted,
            "fallbacks": dict(finish.speculation.fallbacks),
            "relaxed_tokens": finish.speculation.relaxed_tokens,
            "deviation_spent": finish.speculation.deviation_spent,
            "limits_applied": dict(finish.speculation.limits_applied),
            "selections": dict(finish.speculation.selections),
            "row_passes": finish.speculation.row_passes,
            "row_cache_hits": finish.speculation.row_cache_hits,
            "verification": finish.speculation.verification,
            "strength": finish.speculation.strength,
            "budgets": {str(nodes): rounds for nodes, rounds in sorted(finish.speculation.budgets.items())},
        },
        "timings": {"ttft_s": finish.timings.ttft_s, "total_s": finish.timings.total_s},
        "seed": finish.seed,
        "model": finish.model,
    }
