"""The direct listener: TLS, health, reflection, message sizes (F1), addresses and ports (F4), many streams (F6)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import grpc.aio
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from gateway.certificates import Authority
from gateway.rig import Directory, FakeTarget, gateway, model, says, serve, within
from gateway.tokenizers_for_tests import ByteTokenizer
from paceline.errors import Unavailable as CannotListen
from paceline.gateway.config import GatewayConfig, ListenerConfig
from paceline.gateway.listener import SERVICE, GatewayServer
from paceline.rpc.tls import TlsConfig
from paceline.runtime.toy_tokenizer import ToyTokenizer
from paceline.v1 import inference_pb2
from paceline_client import AsyncClient, InvalidRequest, RetryPolicy, TlsOptions, Tokens, Unavailable

ONCE = RetryPolicy(attempts=1)


async def test_health_follows_the_listeners_life() -> None:
    async with gateway(says([97])) as served, grpc.aio.insecure_channel(served.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("", SERVICE):
            answer = await within(stub.Check(health_pb2.HealthCheckRequest(service=service)))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        assert (await within(watch.read())).status == health_pb2.HealthCheckResponse.SERVING
        stopping = asyncio.ensure_future(served.server.stop(0.2))
        assert (await within(watch.read())).status == health_pb2.HealthCheckResponse.NOT_SERVING
        await within(stopping)


async def test_reflection_describes_the_service() -> None:
    async with gateway(says([97])) as served, grpc.aio.insecure_channel(served.address) as channel:
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        names = {service.name for service in (await within(call.read())).list_services_response.service}
        await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE))
        files = (await within(call.read())).file_descriptor_response.file_descriptor_proto
        call.cancel()
    assert {SERVICE, "grpc.health.v1.Health"} <= names
    methods = {
        method.name
        for file in files
        for service in descriptor_pb2.FileDescriptorProto.FromString(file).service
        for method in service.method
    }
    assert methods == {"Generate", "GetModelInfo", "GetStatus"}


async def test_tls_to_clients_and_to_targets(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("gateway.test")
    inside_cert, inside_key = authority.issue("inside.test")
    target = FakeTarget(says([97]))
    lease = await target.start(TlsConfig(cert=inside_cert, key=inside_key, ca=authority.certificate))
    settings = {
        "listener": ListenerConfig(tls=TlsConfig(cert=cert, key=key)),
        "target_tls": TlsConfig(cert=inside_cert, key=inside_key, ca=authority.certificate),
    }
    try:
        async with serve(Directory([lease]), **settings) as served:
            async with AsyncClient(served.address, tls=TlsOptions(ca=authority.certificate)) as client:
                assert (await within(client.complete("x"))).text == "a"
            named = TlsOptions(ca=authority.certificate, server_name="gateway.test")
            async with AsyncClient(served.address, tls=named) as client:
                assert (await within(client.complete("x"))).text == "a"
            for wrong in (None, TlsOptions(), TlsOptions(ca=authority.certificate, server_name="other.test")):
                async with AsyncClient(served.address, tls=wrong, retry=ONCE) as client:
                    with pytest.raises(Unavailable):
                        await within(client.complete("x", timeout_s=20))
    finally:
        await target.stop()


async def test_mutual_tls_wants_a_client_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("gateway.test")
    mine, my_key = authority.issue("me.test")
    listener = ListenerConfig(tls=TlsConfig(cert=cert, key=key, ca=authority.certificate))
    async with gateway(says([97]), listener=listener) as served:
        known = TlsOptions(ca=authority.certificate, cert=mine, key=my_key)
        async with AsyncClient(served.address, tls=known) as client:
            assert (await within(client.complete("x"))).text == "a"
        async with AsyncClient(served.address, tls=TlsOptions(ca=authority.certificate), retry=ONCE) as client:
            with pytest.raises(Unavailable):
                await within(client.complete("x", timeout_s=20))


async def test_a_second_server_on_the_port_fails_by_name() -> None:
    async with gateway(says([97])) as served:
        port = int(served.address.rpartition(":")[2])
        second = GatewayServer(
            GatewayConfig(listener=ListenerConfig(port=port)), Directory([served.targets[0].lease]), ByteTokenizer()
        )
        with pytest.raises(CannotListen, match=f"127.0.0.1:{port}"):
            await second.start()
        await second.stop(0)
        for _ in range(8):
            assert (await within(served.client.complete("x"))).text == "a", "every call still comes to the first"


async def test_ipv6() -> None:
    async with gateway(says([97]), listener=ListenerConfig(bind_host="::1")) as served:
        assert served.address.startswith("[::1]:")
        async with AsyncClient(served.address) as client:
            assert (await within(client.complete("x"))).text == "a"


@pytest.mark.parametrize("no_proxy", [None, "127.0.0.1,localhost"])
async def test_proxy_variables_are_ignored_by_client_and_data_plane(
    monkeypatch: pytest.MonkeyPatch, no_proxy: str | None
) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    if no_proxy is not None:
        monkeypatch.setenv("no_proxy", no_proxy)
    async with gateway(says([97])) as served:
        served.directory.leases[0] = served.targets[0].lease
        assert (await within(served.client.complete("x"))).text == "a"


async def test_a_message_over_every_limit_is_refused_with_the_limit_named() -> None:
    async with gateway(says([97])) as served:
        async with AsyncClient(served.address, max_message_bytes=128 << 20, retry=ONCE) as client:
            with pytest.raises(InvalidRequest, match=str(64 << 20)):
                await within(client.complete("x" * (65 << 20)))
        with pytest.raises(InvalidRequest, match=str(64 << 20)):
            await within(served.client.complete("x" * (65 << 20)))
        assert (await within(served.client.complete("x"))).text == "a"


async def test_a_delta_of_five_megabytes_arrives() -> None:
    tokenizer = ToyTokenizer(["<prompt>", "w" * (1 << 16)])
    async with gateway(says([1] * 80, 80), tokenizer=tokenizer) as served:
        reply = await within(served.client.complete(Tokens([0])))
    assert len(reply.text) == 80 << 16


async def test_many_streams_on_one_channel_all_move() -> None:
    async with gateway(says([97, 98, 99])) as served:
        replies = await within(asyncio.gather(*(served.client.complete("x") for _ in range(150))))
    assert [reply.text for reply in replies] == ["abc"] * 150


async def test_model_info_and_status_come_from_the_targets() -> None:
    async with gateway(says([97]), says([98]), info=model(has_chat_template=False)) as served:
        info = await within(served.client.get_model_info())
        assert (info.model, info.vocab_size, info.context_length, info.proposer) == ("fake", 257, 4096, "suffix")
        assert (info.temperature, info.top_p, info.budget, info.max_budget) == (0.0, 1.0, 8, 64)
        assert info.has_chat_template, "it is the gateway's tokenizer that formats conversations"
        status = await within(served.client.status())
        assert {target.address for target in status.targets} == {target.address for target in served.targets}
        assert status.targets[0].fallbacks == {"late": 2}
        assert len(status.drafters) == 1, "both targets name the same drafter"
        await served.targets[0].stop()
        status = await within(served.client.status())
        assert [target.address for target in status.targets] == [served.targets[1].address]


async def test_requests_in_flight_are_counted() -> None:
    async with gateway(says([97])) as served:
        assert (await within(served.client.status())).gateway_requests == 0
        stream = served.client.generate("x")
        await within(anext(stream))
        await stream.aclose()
        request = inference_pb2.GetStatusRequest()
        assert (await within(served.stub.GetStatus(request))).gateway_requests in (0, 1)
