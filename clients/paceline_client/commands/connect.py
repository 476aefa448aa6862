"""Options that every command talking to a server shares."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from paceline_client.address import DEFAULT_ADDRESS
from paceline_client.connection import TlsOptions
from paceline_client.sync import Client

ADDRESS_VARIABLE = "PACELINE_ADDRESS"


def add_connection_options(parser: argparse.ArgumentParser) -> None:
    """Adds --address and its companions."""
    group = parser.add_argument_group("connection")
    group.add_argument(
        "--address",
        default=None,
        metavar="HOST:PORT",
        help=f"server (default: ${ADDRESS_VARIABLE}, else {DEFAULT_ADDRESS})",
    )
    group.add_argument("--application", metavar="NAME", help="Ray Serve application, where the server runs several")
    group.add_argument("--tls", action="store_true", help="speak TLS, trusting the system's certificates")
    group.add_argument("--tls-ca", type=Path, metavar="FILE", help="certificates to trust instead (PEM); implies --tls")
    group.add_argument("--tls-cert", type=Path, metavar="FILE", help="the client's own certificate; implies --tls")
    group.add_argument("--tls-key", type=Path, metavar="FILE", help="its key")
    group.add_argument("--tls-server-name", metavar="NAME", help="name the server's certificate must carry")


def connect(args: argparse.Namespace) -> Client:
    """The client those options describe. Raises InvalidRequest for a malformed one when the first call is made."""
    tls = None
    if args.tls or args.tls_ca or args.tls_cert or args.tls_key or args.tls_server_name:
        tls = TlsOptions(args.tls_ca, args.tls_cert, args.tls_key, args.tls_server_name)
    return Client(
        args.address or os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS, tls=tls, application=args.application
    )
