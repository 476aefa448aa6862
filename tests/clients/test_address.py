"""Address forms (F4)."""

from __future__ import annotations

import pytest

from paceline_client import InvalidRequest, TlsOptions
from paceline_client.address import target_of
from paceline_client.connection import open_channel


@pytest.mark.parametrize(
    ("address", "target"),
    [
        ("127.0.0.1:9100", "127.0.0.1:9100"),
        ("127.0.0.1", "127.0.0.1:9000"),
        ("localhost", "localhost:9000"),
        (" gateway.example:80 ", "gateway.example:80"),
        ("::1", "[::1]:9000"),
        ("[::1]", "[::1]:9000"),
        ("[::1]:50061", "[::1]:50061"),
        ("fe80::2", "[fe80::2]:9000"),
        ("dns:///host:1", "dns:///host:1"),
        ("unix:/run/p.sock", "unix:/run/p.sock"),
    ],
)
def test_good_addresses(address: str, target: str) -> None:
    assert target_of(address) == target


@pytest.mark.parametrize(
    "address",
    ["", "  ", ":9000", "host:", "host:0", "host:65536", "host:x", "host:-1", "host:１", "a b:1", "[::1", "[::1]9000",
     "[host]:1", "1:2:3", "http://host:9000"],
)  # fmt: skip
def test_malformed_addresses_are_refused_with_the_value(address: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        target_of(address)
    assert repr(address) in str(refused.value)


async def test_a_missing_certificate_file_is_named(tmp_path) -> None:
    with pytest.raises(InvalidRequest, match=r"nowhere\.pem"):
        open_channel("h:1", TlsOptions(ca=tmp_path / "nowhere.pem"))
    with pytest.raises(InvalidRequest, match="both"):
        open_channel("h:1", TlsOptions(cert=tmp_path / "cert.pem"))
