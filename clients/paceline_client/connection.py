"""How the client reaches a server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio

from paceline_client.address import target_of
from paceline_client.errors import InvalidRequest

MAX_MESSAGE_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """TLS towards the server; paths of PEM files."""

    ca: Path | None = None  # certificates to trust; None: the system's
    cert: Path | None = None  # the client's own certificate, where the server asks for one
    key: Path | None = None  # its key
    server_name: str | None = None  # name the server's certificate must carry; None: the address's host


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Tries of a call before the first message of its reply has come. Afterwards nothing is tried again."""

    attempts: int = 3  # in all, 1 for none again
    first_pause_s: float = 0.2  # doubles with each


def open_channel(
    address: str,
    tls: TlsOptions | None = None,
    *,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
    keepalive_s: float | None = None,
) -> grpc.aio.Channel:
    """A channel on the running event loop; it connects with its first call.

    HTTP proxy variables are ignored. `keepalive_s` pings a silent connection so that a partition is noticed; leave it
    out where the server may take pings amiss (Ray Serve's default proxy does). Raises InvalidRequest for a malformed
    address and for certificate files that cannot be read.
    """
    options: list[tuple[str, int | str]] = [
        ("grpc.enable_http_proxy", 0),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
    ]
    if keepalive_s is not None:
        options += [("grpc.keepalive_time_ms", round(keepalive_s * 1e3)), ("grpc.http2.max_pings_without_data", 0)]
    target = target_of(address)
    if tls is None:
        return grpc.aio.insecure_channel(target, options)
    if (tls.cert is None) != (tls.key is None):
        raise InvalidRequest("tls: a client certificate needs both its certificate and its key")
    if tls.server_name is not None:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    credentials = grpc.ssl_channel_credentials(_read(tls.ca), _read(tls.key), _read(tls.cert))
    return grpc.aio.secure_channel(target, credentials, options)


def _read(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"tls: cannot read {path}: {error.strerror}") from None
