"""The gateway with the tokenizers that models bring: loading them, and their text in pieces (D1)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.rig import Directory, FakeTarget, gateway, model, says, within
from paceline.errors import ModelNotFound
from paceline.errors import Unavailable as NoTarget
from paceline.gateway.config import GatewayConfig
from paceline.gateway.listener import GatewayServer
from paceline.runtime.tokenizer import HuggingFaceTokenizer, load_tokenizer
from paceline_client import AsyncClient, Chat, Tokens
from support.tiny import byte_level_tokenizer, metaspace_tokenizer, save_tokenizer

TEXT = "Příliš žluťoučký 안녕 👩‍👩‍👧 ok"
KINDS = {"byte_level": byte_level_tokenizer, "metaspace": metaspace_tokenizer}


@pytest.fixture(scope="module", params=list(KINDS))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with a tokenizer in it."""
    return save_tokenizer(tmp_path_factory.mktemp(request.param), KINDS[request.param]())


def described(tokenizer: HuggingFaceTokenizer, **changes: Any) -> Any:
    return model(tokenizer, **changes)


@pytest.mark.parametrize("chunk", [1, 2, 3, 7])
async def test_joined_deltas_are_one_decode_of_all_tokens(folder: Path, chunk: int) -> None:
    tokenizer = load_tokenizer(folder)
    tokens = tokenizer.encode(TEXT)
    async with gateway(says(tokens, chunk), tokenizer=tokenizer) as served:
        reply = await within(served.client.complete(Tokens([1])))
    assert reply.text == tokenizer.decode(tokens) == TEXT
    assert list(reply.token_ids) == tokens


async def test_the_tokenizer_is_that_of_the_model_the_first_target_serves(folder: Path) -> None:
    """Nothing is configured, and the target comes up after the gateway."""
    tokenizer = load_tokenizer(folder)
    tokens = tokenizer.encode("one two")
    target = FakeTarget(says(tokens), described(tokenizer, model=str(folder)))
    server = GatewayServer(GatewayConfig(), Directory([NoTarget("not yet"), await target.start()]))
    try:
        async with AsyncClient(await within(server.start())) as client:
            assert (await within(client.complete(Chat.user("one")))).text == "one two"
        prompt = tokenizer.apply_chat([("user", "one")])
        assert len(target.requests[0].prompt_tokens) == 4 * len(prompt)
    finally:
        await server.stop(0)
        await target.stop()


async def test_a_configured_model_is_loaded_without_any_target(folder: Path) -> None:
    server = GatewayServer(GatewayConfig(model=str(folder)), Directory([NoTarget("must not be asked")]))
    try:
        await within(server.start())
    finally:
        await server.stop(0)


async def test_a_gateway_that_cannot_start_says_why_and_leaves_nothing() -> None:
    with pytest.raises(ModelNotFound, match="no-such-model"):
        await GatewayServer(GatewayConfig(model="no-such-model"), Directory([NoTarget("none")])).start()
    late = GatewayServer(GatewayConfig(start_timeout_s=0.05), Directory([NoTarget("the pool is empty")]))
    with pytest.raises(NoTarget, match=r"start_timeout_s.*the pool is empty"):
        await within(late.start())
