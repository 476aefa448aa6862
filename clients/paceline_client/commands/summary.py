"""A reply's figures: for people, and as JSON."""

from __future__ import annotations

from typing import Any

from paceline_client.replies import Finish, Reply, Speculation


def summary_lines(finish: Finish) -> list[str]:
    """Two short lines on a finished reply."""
    tokens, timings = finish.usage.completion_tokens, finish.timings
    ended = f'stop string "{finish.stop_match}"' if finish.stop_match else finish.reason
    return [
        f"{tokens} tokens ({ended}), {rate(finish)}, first token after {timings.ttft_s:.2f} s,"
        f" {finish.usage.prompt_tokens} prompt tokens, seed {finish.seed}",
        f"{finish.speculation.rounds} rounds, {accepted_per_round(finish.speculation):.2f} accepted per round"
        f" ({finish.speculation.accepted} of {finish.speculation.drafted} drafted), fallbacks:"
        f" {fallbacks(finish.speculation)}",
    ]


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
    return ", ".join(f"{reason} {n}" for reason, n in sorted(speculation.fallbacks.items())) or "none"


def reply_json(reply: Reply) -> dict[str, Any]:
    """The object that `--json` prints."""
    finish = reply.finish
    return {
        "text": reply.text,
        "token_ids": list(reply.token_ids),
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
        },
        "timings": {"ttft_s": finish.timings.ttft_s, "total_s": finish.timings.total_s},
        "seed": finish.seed,
        "model": finish.model,
    }
