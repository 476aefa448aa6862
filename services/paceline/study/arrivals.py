"""When the tokens of replies came."""

from __future__ import annotations

from collections.abc import Sequence

Arrivals = list[tuple[float, int]]  # (seconds of a monotone clock, tokens that came then), in order


def of_decoding(arrivals: Arrivals) -> Arrivals:
    """Those of one of our replies without the first.

    Where a prompt has come before, its first token is drawn from a row that was kept, and the prompt is read only then:
    the first arrival is before prefill, or after it. The second is after it always.
    """
    return arrivals[1:] or arrivals


def in_common(replies: Sequence[Arrivals]) -> tuple[int, float]:
    """Tokens, and seconds, from the last reply's first arrival to the first reply's last one."""
    start = max(each[0][0] for each in replies)
    end = min(each[-1][0] for each in replies)
    return sum(count for each in replies for at, count in each if start < at <= end), end - start
