"""The gRPC edge: statuses, arrays, unknown fields, addresses, listeners."""

from __future__ import annotations

import socket
from pathlib import Path

import grpc
import grpc.aio
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from gateway.certificates import Authority
from paceline import errors
from paceline.drafter.config import DrafterConfig
from paceline.drafter.server import DrafterServer
from paceline.rpc import arrays, channels, status
from paceline.rpc.convert import sampling_from_proto, sampling_to_proto
from paceline.rpc.tls import TlsConfig
from paceline.rpc.trees import row_from_proto, row_to_proto, tree_from_proto, tree_to_proto
from paceline.rpc.unknown_fields import refuse_unknown
from paceline.speculation.rows import Row
from paceline.speculation.sampling import SamplingParams
from paceline.speculation.tree import DraftTree, TreeFault
from paceline.v1 import draft_pb2, draft_pb2_grpc, inference_pb2

MADE = {errors.InvalidField: errors.InvalidField("top_p", 2, "0 to 1")}


def test_every_error_type_has_a_row() -> None:
    kinds = {
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.PacelineError)
    }
    assert kinds - {errors.PacelineError} == set(status.STATUS_OF)


@pytest.mark.parametrize(("kind", "code"), status.STATUS_OF.items())
def test_an_error_becomes_its_status(kind: type[errors.PacelineError], code: grpc.StatusCode) -> None:
    error = MADE.get(kind) or kind("what is wrong")
    assert status.status_of(error) == (code, str(error))


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, errors.Overloaded),
        (grpc.StatusCode.UNAVAILABLE, errors.Unavailable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, errors.DeadlineExceeded),
        (grpc.StatusCode.INVALID_ARGUMENT, status.RemoteError),
        (grpc.StatusCode.INTERNAL, status.RemoteError),
    ],
)
def test_a_status_becomes_an_error_that_is_passed_on_unchanged(code: grpc.StatusCode, kind: type[Exception]) -> None:
    remote = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), "why")
    error = status.from_rpc_error(remote)
    assert type(error) is kind
    assert status.status_of(error) == (code, "why")


def test_an_unknown_error_tells_nothing(caplog: pytest.LogCaptureFixture) -> None:
    code, details = status.status_of(RuntimeError("/secret/path"))
    assert code is grpc.StatusCode.INTERNAL
    assert "secret" not in details
    assert "/secret/path" in caplog.text


def test_arrays_are_little_endian_and_of_whole_elements() -> None:
    assert arrays.ints_to_bytes([1, -2]) == b"\x01\0\0\0\xfe\xff\xff\xff"
    assert arrays.bytes_to_ints(b"\x01\0\0\0\xfe\xff\xff\xff", "x").tolist() == [1, -2]
    assert arrays.bytes_to_floats(arrays.floats_to_bytes([0.5]), "x").tolist() == [0.5]
    swapped = np.asarray([1, -2], dtype=">i8")
    assert arrays.ints_to_bytes(swapped) == arrays.ints_to_bytes([1, -2])
    assert arrays.bytes_to_ints(b"").tolist() == []
    for too_large in ([2**31], [1, -(2**31) - 1], np.asarray([2**31])):
        with pytest.raises(OverflowError):
            arrays.ints_to_bytes(too_large)
    with pytest.raises(errors.InvalidField, match="tokens: got '5 bytes'"):
        arrays.bytes_to_ints(b"12345", "tokens")


def with_unknown(message: inference_pb2.GenerateRequest, nested: bool) -> inference_pb2.GenerateRequest:
    """The message as a newer client would send it, with field 999."""
    extra = b"\xba\x3e\x02hi"  # field 999, two bytes
    if not nested:
        return inference_pb2.GenerateRequest.FromString(message.SerializeToString() + extra)
    inner = inference_pb2.ChatMessage(role="user", content="x").SerializeToString() + extra
    message.chat.messages.append(inference_pb2.ChatMessage.FromString(inner))
    return message


@pytest.mark.parametrize(
    ("nested", "path"), [(False, "GenerateRequest: field 999"), (True, r"chat\.messages\[0\]: field 999")]
)
def test_unknown_fields_are_refused_with_their_path(nested: bool, path: str) -> None:
    with pytest.raises(errors.InvalidField, match=path):
        refuse_unknown(with_unknown(inference_pb2.GenerateRequest(), nested))


def test_an_unknown_field_deep_inside_a_frame_of_the_data_plane_is_named() -> None:
    frame = draft_pb2.DraftRequest(updates=[draft_pb2.SessionUpdate(session=1), draft_pb2.SessionUpdate(session=2)])
    options = draft_pb2.DraftOptions.FromString(b"\xb8\x3e\x01")  # field 999, a number
    frame.updates[1].open.options.CopyFrom(options)
    with pytest.raises(errors.InvalidField, match=r"updates\[1\]\.open\.options: field 999"):
        refuse_unknown(frame)


def test_known_fields_pass() -> None:
    message = inference_pb2.GenerateRequest(text="x", logit_bias={3: 1.0})
    message.sampling.temperature = 0.5
    refuse_unknown(message)


@pytest.mark.parametrize("address", ["h:1", "127.0.0.1:50061", "[::1]:50061", "unix:/tmp/x", "dns:///h:1"])
def test_good_addresses(address: str) -> None:
    assert channels.target_of(address) == address


@pytest.mark.parametrize("address", ["", "h", "h:", ":1", "h:0", "h:70000", "h:x", "::1", "::1:50061", "[h]:1"])
def test_bad_addresses_are_named(address: str) -> None:
    with pytest.raises(errors.InvalidField, match="address: got"):
        channels.target_of(address)


def test_ports_join_hosts_of_both_families() -> None:
    assert [channels.host_port(host, 5) for host in ("h", "::1", "[::1]")] == ["h:5", "[::1]:5", "[::1]:5"]


def test_sampling_parameters_survive_the_wire() -> None:
    params = SamplingParams(temperature=0.0, top_k=0, top_p=0.0, seed=2**64 - 1)
    assert sampling_from_proto(sampling_to_proto(params)) == params
    assert sampling_to_proto(params, with_seed=False).seed == 0


def test_trees_survive_the_wire_and_are_checked_there() -> None:
    tree = DraftTree.build([5, 6], [-1, 0], [-0.5, -1.0])
    message = tree_to_proto(tree, 17)
    assert message.base_length == 17
    limits = {"vocab_size": 10, "max_nodes": 4, "max_depth": 4}
    back = tree_from_proto(message, **limits)
    assert (back.tokens.tolist(), back.parents.tolist()) == ([5, 6], [-1, 0])
    assert np.array_equal(back.log_probs, tree.log_probs)  # type: ignore[arg-type]
    message.tokens = b"12345"
    with pytest.raises(TreeFault, match="multiple of 4"):
        tree_from_proto(message, **limits)


def test_rows_survive_the_wire_without_what_float32_cannot_hold() -> None:
    """At a low temperature the tail of the leading tokens underflows; a probability of 0 would break the protocol."""
    row = Row(np.asarray([2, 5, 7, 9]), np.asarray([1e-60, 0.75, 0.25, 1e-50]))
    copy = row_from_proto(row_to_proto(row), 10)
    assert copy.token_ids.tolist() == [5, 7]
    assert copy.probs.tolist() == [0.75, 0.25]


async def status_of_drafter(address: str, tls: TlsConfig | None = None) -> draft_pb2.GetDrafterStatusResponse:
    async with channels.open_channel(address, tls) as channel:
        stub = draft_pb2_grpc.DraftServiceStub(channel)
        return await stub.GetDrafterStatus(draft_pb2.GetDrafterStatusRequest(), timeout=10)


async def test_a_taken_port_is_named_at_start() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(errors.Unavailable, match=f"127.0.0.1:{port}: Address already in use"):
            await DrafterServer(DrafterConfig(port=port)).start()


async def test_a_second_server_on_the_port_fails() -> None:
    first = DrafterServer(DrafterConfig())
    address = await first.start()
    try:
        with pytest.raises(errors.Unavailable, match="Address already in use"):
            await DrafterServer(DrafterConfig(port=int(address.rpartition(":")[2]))).start()
    finally:
        await first.stop(0)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
async def test_health_and_reflection_answer_past_a_dead_proxy(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    server = DrafterServer(DrafterConfig(bind_host=host))
    address = await server.start()
    try:
        assert (await status_of_drafter(address)).status.proposer == "suffix"
        async with channels.open_channel(address) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            for service in ("", "paceline.v1.DraftService"):
                answer = await health.Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
                assert answer.status == health_pb2.HealthCheckResponse.SERVING
            listing = reflection_pb2.ServerReflectionRequest(list_services="")
            call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([listing]))
            names = {each.name async for response in call for each in response.list_services_response.service}
            assert "paceline.v1.DraftService" in names
    finally:
        await server.stop(0)


async def test_a_message_over_the_limit_is_refused_and_the_channel_goes_on() -> None:
    server = DrafterServer(DrafterConfig())
    address = await server.start()
    try:
        async with channels.open_channel(address) as channel:
            stub = draft_pb2_grpc.DraftServiceStub(channel)
            large = draft_pb2.OpenSession(context_tokens=bytes(channels.MAX_MESSAGE_BYTES))
            call = stub.Draft(iter([draft_pb2.DraftRequest(updates=[draft_pb2.SessionUpdate(open=large)])]))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert str(channels.MAX_MESSAGE_BYTES) in str(caught.value.details())
            answer = await stub.GetDrafterStatus(draft_pb2.GetDrafterStatusRequest(), timeout=10)
            assert answer.status.sessions == 0
    finally:
        await server.stop(0)


async def test_mutual_tls_lets_in_who_the_authority_signed(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("localhost")
    both = TlsConfig(cert=cert, key=key, ca=authority.certificate)
    server = DrafterServer(DrafterConfig(tls=both))
    address = await server.start()
    try:
        assert (await status_of_drafter(address, both)).status.address == address
        for stranger in (None, TlsConfig(ca=authority.certificate)):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await status_of_drafter(address, stranger)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    finally:
        await server.stop(0)


async def test_tls_faults_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cert and key"):
        TlsConfig(cert=tmp_path / "a.pem")
    missing = TlsConfig(cert=tmp_path / "a.pem", key=tmp_path / "a.key")
    with pytest.raises(errors.InvalidField, match=r"tls\.key"):
        await DrafterServer(DrafterConfig(tls=missing)).start()
