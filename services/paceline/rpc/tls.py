"""TLS settings of a listener or a channel."""

from __future__ import annotations

import ssl
from pathlib import Path

import grpc
from pydantic import BaseModel, ConfigDict, Field, model_validator

from paceline.errors import InvalidField


class TlsConfig(BaseModel):
    """Files in PEM form. A server needs `cert` and `key`; with `ca` it demands client certificates (mutual TLS)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cert: Path | None = Field(None, description="certificate chain of this end")
    key: Path | None = Field(None, description="private key of this end")
    ca: Path | None = Field(None, description="certificates that sign the other end's")

    @model_validator(mode="after")
    def _pair(self) -> TlsConfig:
        if (self.cert is None) != (self.key is None):
            raise ValueError("cert and key must be given together")
        return self

    def server_credentials(self) -> grpc.ServerCredentials:
        """Credentials of a listener. Raises InvalidField for a file that is missing, unreadable or not what it says."""
        if self.cert is None or self.key is None:
            raise InvalidField("tls.cert", None, "a PEM file", "a TLS listener needs cert and key")
        pair = (_read("tls.key", self.key), _read("tls.cert", self.cert))
        ca = None if self.ca is None else _read("tls.ca", self.ca)
        self._check()
        return grpc.ssl_server_credentials([pair], root_certificates=ca, require_client_auth=ca is not None)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Credentials of a client. Raises InvalidField for a file that is missing, unreadable or not what it says."""
        ca = None if self.ca is None else _read("tls.ca", self.ca)
        key = None if self.key is None else _read("tls.key", self.key)
        cert = None if self.cert is None else _read("tls.cert", self.cert)
        self._check()
        return grpc.ssl_channel_credentials(ca, key, cert)

    def _check(self) -> None:
        """gRPC says of a bad file no more than that a port, or a connection, cannot be had."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            if self.ca is not None:
                context.load_verify_locations(self.ca)
        except ssl.SSLError as error:
            raise InvalidField("tls.ca", str(self.ca), "certificates in PEM form", str(error.reason or "")) from error
        try:
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key, password=lambda: "")  # never ask at the terminal
        except ssl.SSLError as error:
            allowed = "a certificate chain and its own unencrypted key in PEM form"
            raise InvalidField("tls.cert", str(self.cert), allowed, str(error.reason or "")) from error


def _read(field: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidField(field, str(path), "a readable PEM file", error.strerror or "") from error
