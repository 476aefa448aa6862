"""Ports: free ones for what nobody connects to by number, and a clear word about one that is taken."""

from __future__ import annotations

import socket

from paceline.errors import InvalidField


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """`count` different ports that are free now. They are not held: another process may take one in between."""
    held = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for each in held:
            each.bind((host, 0))
        return [each.getsockname()[1] for each in held]
    finally:
        for each in held:
            each.close()


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
