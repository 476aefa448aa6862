"""Channels of the data plane, and the options both of its ends use."""

from __future__ import annotations

import ipaddress

import grpc.aio

from paceline.errors import InvalidField
from paceline.rpc.tls import TlsConfig

MAX_MESSAGE_BYTES = 64 << 20

# Without keepalive a silent partition is noticed by nobody; with it, after about two seconds.
_KEEPALIVE: list[tuple[str, int]] = [
    ("grpc.keepalive_time_ms", 1000),
    ("grpc.keepalive_timeout_ms", 1000),
    ("grpc.http2.ping_timeout_ms", 5000),  # of a peer whose kernel answers and whose process does not; 60 s unless set
    ("grpc.keepalive_permit_without_calls", 1),
]
_SIZES: list[tuple[str, int]] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
]
CLIENT_OPTIONS = [
    *_KEEPALIVE,
    *_SIZES,
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_http_proxy", 0),  # addresses are the cluster's own
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2000),  # also how long a connection may take to be set up; 20 s unless set
    ("grpc.max_reconnect_backoff_ms", 2000),
]
SERVER_OPTIONS = [
    *_KEEPALIVE,
    *_SIZES,
    ("grpc.http2.min_ping_interval_without_data_ms", 100),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),  # a second server on the port must fail, not take half of the calls
]


def open_channel(address: str, tls: TlsConfig | None = None) -> grpc.aio.Channel:
    """A channel to `address`; it connects on first use. It belongs to the event loop that opens it."""
    target = target_of(address)
    if tls is None:
        return grpc.aio.insecure_channel(target, options=CLIENT_OPTIONS)
    return grpc.aio.secure_channel(target, tls.channel_credentials(), options=CLIENT_OPTIONS)


def host_port(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 host."""
    bare = host.strip("[]")
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"


def target_of(address: str) -> str:
    """`address` in the form gRPC takes. Raises InvalidField unless it is host:port, [ipv6]:port or unix:path."""
    if address.startswith(("unix:", "dns:", "ipv4:", "ipv6:")):
        return address
    host, separator, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not separator or not host or not port.isdigit() or not 0 < int(port) < 65536 or (":" in host and not bracketed):
        remedy = "write an IPv6 host in brackets" if _is_ipv6(address) else ""
        raise InvalidField("address", address, "host:port, [ipv6]:port or unix:path", remedy)
    if bracketed and not _is_ipv6(host[1:-1]):
        raise InvalidField("address", address, "an IPv6 address inside the brackets")
    return address


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text.split("%")[0]).version == 6
    except ValueError:
        return False
