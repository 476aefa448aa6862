"""Ports: free ones for what nobody connects to by number, and a clear word about one that is taken."""

from __future__ import annotations

import itertools
import random
import socket
from pathlib import Path

from paceline.errors import InvalidField, Unavailable

OWN_PORTS = range(20000, 30000)  # Ray's workers may take 10002 to 19999, Serve's replicas 30000 to 31000


def free_ports(count: int) -> list[int]:
    """`count` different ports that are free now. They are not held: another process may take one in between.

    They lie outside the range that the system hands out by itself, where that leaves any. A port in there may become
    the near end of any connection; Ray opens hundreds between this choice and the moment HAProxy listens, and one met
    ends the start.
    """
    first, last = _handed_out()
    candidates = [port for port in OWN_PORTS if not first <= port <= last] or list(OWN_PORTS)
    random.SystemRandom().shuffle(candidates)  # two stacks that start at once choose apart
    free = list(itertools.islice((port for port in candidates if is_free(port, "127.0.0.1")), count))
    if len(free) < count:
        raise Unavailable(f"{count} free ports are needed between {OWN_PORTS[0]} and {OWN_PORTS[-1]}, {len(free)} are")
    return free


def _handed_out() -> tuple[int, int]:
    """First and last port that the system gives to connections and to listeners that name none."""
    try:
        first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except OSError:
        return 49152, 65535  # elsewhere than on Linux: what IANA keeps for this
    return int(first), int(last)


def is_free(port: int, host: str) -> bool:
    """Whether `port` can be listened on. A port that a server listens on through another address counts as taken."""
    for address in {host, "0.0.0.0"}:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections in TIME_WAIT do not count
            try:
                probe.bind((address, port))
                probe.listen(1)
            except OSError:
                return False
    return True


def require_free(field: str, port: int, host: str) -> None:
    """Raises InvalidField naming `field` if `port` is taken."""
    if not is_free(port, host):
        raise InvalidField(field, port, "a free port", "Another process listens on it; end it or name another port.")
