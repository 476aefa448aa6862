"""Ray's error texts, which hold whole tracebacks of other processes, in one line for people."""

from __future__ import annotations

import re
from collections.abc import Sequence

LONGEST = 500  # characters
_ERROR_LINE = re.compile(r"^\s*(?:[\w.]+\.)?([A-Z]\w+): (.+)$")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def deepest(messages: Sequence[str]) -> str:
    """The last error that a traceback in one of the messages ends with; earlier messages first. Else the texts, cut.

    Lines below an error's first belong to it: HAProxy, for one, says why it ended in the fourth.
    """
    plain = [_ANSI.sub("", message) for message in messages]
    for message in plain:
        if "Traceback" not in message and "Error" not in message:
            continue
        lines = message.splitlines()
        for index, line in reversed(list(enumerate(lines))):
            if (match := _ERROR_LINE.match(line)) and _is_error(match[1]):
                return _one_line([match[2], *lines[index + 1 :]])
    return _one_line(plain)


def _one_line(texts: Sequence[str]) -> str:
    return " ".join(" ".join(texts).split())[:LONGEST]


def _is_error(name: str) -> bool:
    """Whether a name at the start of a line is that of an error of ours or of Python, not of Ray's wrapping."""
    import builtins

    from paceline import errors

    known = getattr(errors, name, None) or getattr(builtins, name, None)
    return isinstance(known, type) and issubclass(known, BaseException)
