"""Addresses as people write them: host, host:port, IPv6 with or without brackets."""

from __future__ import annotations

import ipaddress

from paceline_client.errors import InvalidRequest

DEFAULT_PORT = 9000
DEFAULT_ADDRESS = f"127.0.0.1:{DEFAULT_PORT}"
_FORMS = "HOST, HOST:PORT, an IPv6 address, [IPv6]:PORT, dns:///HOST:PORT or unix:PATH"


def target_of(address: str) -> str:
    """gRPC's form of an address; port 9000 where none is given. Raises InvalidRequest naming the allowed forms."""
    text = address.strip()
    if text.startswith(("unix:", "unix-abstract:", "dns:")):
        return text
    if not text or "/" in text or any(character.isspace() for character in text):
        raise _wrong(address)
    if text.startswith("["):
        inner, bracket, rest = text[1:].partition("]")
        if not bracket or not _is_ipv6(inner) or (rest and not rest.startswith(":")):
            raise _wrong(address)
        return f"[{inner}]:{_port(rest[1:], address) if rest else DEFAULT_PORT}"
    if text.count(":") > 1:
        if not _is_ipv6(text):
            raise _wrong(address)
        return f"[{text}]:{DEFAULT_PORT}"
    host, colon, port = text.partition(":")
    if not host:
        raise _wrong(address)
    return f"{host}:{_port(port, address) if colon else DEFAULT_PORT}"


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _port(text: str, address: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 65535):
        raise InvalidRequest(f"address: got {address!r}, allowed: a port from 1 to 65535 after the last colon")
    return int(text)


def _wrong(address: str) -> InvalidRequest:
    return InvalidRequest(f"address: got {address!r}, allowed: {_FORMS}")
