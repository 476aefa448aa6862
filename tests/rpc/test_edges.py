"""What goes wrong at the edge is said in the words of whoever can mend it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import grpc
import grpc.aio
import pytest

from gateway.certificates import Authority
from paceline.drafter.config import DrafterConfig
from paceline.drafter.server import DrafterServer
from paceline.errors import InvalidField, Unavailable
from paceline.rpc.channels import CLIENT_OPTIONS, SERVER_OPTIONS, open_channel
from paceline.rpc.server import DataPlaneServer
from paceline.rpc.status import from_rpc_error, status_of
from paceline.rpc.tls import TlsConfig
from paceline.v1 import draft_pb2, draft_pb2_grpc


def listener(host: str = "127.0.0.1", tls: TlsConfig | None = None) -> DataPlaneServer:
    return DataPlaneServer([], lambda server: None, host=host, port=0, tls=tls)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    authority = Authority(tmp_path)
    cert, key = authority.issue("localhost")
    (tmp_path / "other").mkdir()
    _, other_key = Authority(tmp_path / "other").issue("localhost")
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("not a certificate")
    return {"cert": cert, "key": key, "ca": authority.certificate, "other": other_key, "garbage": garbage}


@pytest.mark.parametrize("use", [TlsConfig.server_credentials, TlsConfig.channel_credentials])
@pytest.mark.parametrize(
    ("named", "chosen"),
    [
        ("tls.cert", {"cert": "garbage", "key": "key"}),
        ("tls.cert", {"cert": "cert", "key": "garbage"}),
        ("tls.cert", {"cert": "cert", "key": "other"}),
        ("tls.ca", {"cert": "cert", "key": "key", "ca": "garbage"}),
    ],
)
def test_files_that_are_not_what_they_say(
    files: dict[str, Path], named: str, chosen: dict[str, str], use: Callable[[TlsConfig], object]
) -> None:
    tls = TlsConfig(**{field: files[name] for field, name in chosen.items()})
    with pytest.raises(InvalidField, match=f"{named}: got .*PEM form"):
        use(tls)


def test_good_files_pass(files: dict[str, Path]) -> None:
    tls = TlsConfig(cert=files["cert"], key=files["key"], ca=files["ca"])
    assert tls.server_credentials() is not None
    assert tls.channel_credentials() is not None


@pytest.mark.parametrize("host", ["203.0.113.7", "no-such-host.invalid"])
async def test_an_address_of_another_machine_is_not_blamed_on_the_port(host: str) -> None:
    with pytest.raises(Unavailable, match=f"cannot listen on {host}:0: .*an address of this machine"):
        await listener(host).start()


def test_an_error_that_escaped_a_peer_is_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    text = "Unexpected <class 'KeyError'>: '/etc/secret'"
    remote = grpc.aio.AioRpcError(grpc.StatusCode.UNKNOWN, grpc.aio.Metadata(), grpc.aio.Metadata(), text)
    code, details = status_of(from_rpc_error(remote))
    assert code is grpc.StatusCode.INTERNAL
    assert "secret" not in details
    assert "/etc/secret" in caplog.text


def test_both_ends_keep_alive_and_let_the_other_do_so() -> None:
    """A silent partition is noticed in about two seconds, and no pings are too many (case F6)."""
    client, server = dict(CLIENT_OPTIONS), dict(SERVER_OPTIONS)
    for end in (client, server):
        assert (end["grpc.keepalive_time_ms"], end["grpc.keepalive_timeout_ms"]) == (1000, 1000)
        assert end["grpc.max_receive_message_length"] == end["grpc.max_send_message_length"] == 64 << 20
    assert (client["grpc.http2.max_pings_without_data"], server["grpc.http2.max_ping_strikes"]) == (0, 0)
    assert server["grpc.http2.min_ping_interval_without_data_ms"] < client["grpc.keepalive_time_ms"]


class Relay:
    """Passes bytes between a port and a server until it is cut, and then none, without closing anything."""

    def __init__(self, address: str) -> None:
        self.host, self.port = address.split(":")
        self.open = asyncio.Event()
        self.open.set()
        self.tasks: set[asyncio.Task[None]] = set()

    async def join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back_reader, back_writer = await asyncio.open_connection(self.host, int(self.port))
        for source, sink in ((reader, back_writer), (back_reader, writer)):
            self.tasks.add(asyncio.create_task(self.copy(source, sink)))

    async def copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            await self.open.wait()
            sink.write(data)


async def test_a_silent_partition_ends_the_streams_at_both_ends() -> None:
    """The kernels still acknowledge, as with a hung process or a relay, so only unanswered pings tell."""
    server = DrafterServer(DrafterConfig())
    relay = Relay(await server.start())
    front = await asyncio.start_server(relay.join, "127.0.0.1", 0)
    try:
        host, port = front.sockets[0].getsockname()
        async with open_channel(f"{host}:{port}") as channel:
            call = draft_pb2_grpc.DraftServiceStub(channel).Draft()
            await call.write(draft_pb2.DraftRequest(updates=[draft_pb2.SessionUpdate(session=1)]))
            assert len((await call.read()).replies) == 1
            assert server.streams == 1
            relay.open.clear()
            async with asyncio.timeout(60):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call.read()
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
                while server.streams:  # noqa: ASYNC110 - the server has no event for it
                    await asyncio.sleep(0.01)
    finally:
        for task in relay.tasks:
            task.cancel()
        front.close()
        await server.stop(0)


async def test_a_peer_that_never_speaks_is_given_up() -> None:
    """It accepts the connection and no more, as a hung process does."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        async with open_channel(f"127.0.0.1:{silent.getsockname()[1]}") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary("/a.Service/Method")(b"", timeout=60)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
