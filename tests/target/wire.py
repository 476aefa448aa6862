"""Real gRPC for tests: a drafter whose manners a test chooses, and a target served with a table model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc.aio
import numpy as np

from paceline.rpc.arrays import bytes_to_ints, ints_to_bytes
from paceline.rpc.channels import open_channel
from paceline.rpc.server import DataPlaneServer
from paceline.rpc.trees import tree_to_proto
from paceline.runtime.toy import ToyRunner
from paceline.runtime.toy_tokenizer import ToyTokenizer
from paceline.speculation.tree import DraftTree
from paceline.target.config import TargetConfig
from paceline.target.link import DrafterLease
from paceline.target.server import TargetServer
from paceline.v1 import common_pb2, draft_pb2, draft_pb2_grpc, inference_pb2, target_pb2, target_pb2_grpc

PATIENCE_S = 30.0
Answer = draft_pb2.SessionReply | None


class WireDrafter(draft_pb2_grpc.DraftServiceServicer):
    """Keeps contexts by stream and answers by `propose(context, budget)`: a tree, a finished reply, or None."""

    def __init__(self, propose: Callable[[list[int], int], DraftTree | Answer], fingerprint: str = "") -> None:
        self.propose, self.fingerprint = propose, fingerprint
        self.contexts: dict[int, list[int]] = {}
        self.streams = 0
        self.requests: list[draft_pb2.DraftRequest] = []
        self.refuse: grpc.StatusCode | None = None
        self.awake = asyncio.Event()  # cleared: reads and answers nothing more
        self.awake.set()
        self.end_streams = asyncio.Event()

    async def Draft(self, requests, context):  # noqa: N802
        if self.refuse is not None:
            await context.abort(self.refuse, "as told")
        self.streams += 1
        contexts: dict[int, list[int]] = {}
        self.contexts = contexts
        try:
            ended = asyncio.create_task(self.end_streams.wait())
            while True:
                read = asyncio.create_task(context.read())
                await asyncio.wait([read, ended], return_when=asyncio.FIRST_COMPLETED)
                if ended.done():
                    read.cancel()
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "draining")
                request = read.result()
                if request is grpc.aio.EOF:
                    return
                self.requests.append(request)
                await self.awake.wait()
                replies = [reply for update in request.updates if (reply := self.take(contexts, update)) is not None]
                if replies:
                    await context.write(draft_pb2.DraftResponse(replies=replies))
        finally:
            self.streams -= 1

    def take(self, contexts: dict[int, list[int]], update: draft_pb2.SessionUpdate) -> Answer:
        kind = update.WhichOneof("update")
        if kind == "close":
            contexts.pop(update.session, None)
            return None
        if kind == "open":
            contexts[update.session] = bytes_to_ints(update.open.context_tokens, "context").tolist()
            budget = update.open.budget
        elif kind == "target_row":
            told = update.target_row
            assert told.base_length == len(contexts[update.session])
            contexts[update.session] += [told.drawn] if told.HasField("drawn") else []
            budget = told.budget
        else:
            assert update.advance.base_length == len(contexts[update.session])
            contexts[update.session] += bytes_to_ints(update.advance.tokens, "tokens").tolist()
            budget = update.advance.budget
        if budget == 0:
            return None
        context = contexts[update.session]
        answer = self.propose(list(context), budget)
        if isinstance(answer, DraftTree):
            answer = draft_pb2.SessionReply(tree=tree_to_proto(answer, len(context)))
        if answer is not None:
            answer.session = answer.session or update.session
            answer.epoch = update.epoch
        return answer

    async def GetDrafterStatus(self, request, context):  # noqa: N802
        return draft_pb2.GetDrafterStatusResponse(
            status=inference_pb2.DrafterStatus(proposer="wire", sessions=len(self.contexts), streams=self.streams),
            tokenizer_fingerprint=self.fingerprint,
        )

    async def stream_count(self) -> int:
        return self.streams


@asynccontextmanager
async def serving(drafter: WireDrafter, port: int = 0) -> AsyncIterator[str]:
    """The drafter on loopback; yields its address. At the end its streams are cut."""
    server = DataPlaneServer(
        [],
        lambda server: draft_pb2_grpc.add_DraftServiceServicer_to_server(drafter, server),
        host="127.0.0.1",
        port=port,
    )
    address = await server.start()
    try:
        yield address
    finally:
        await server.stop(0)


class Directory:
    """Names whatever address a test puts in."""

    def __init__(self, address: str | None = None) -> None:
        self.address, self.asked = address, 0

    async def lease(self) -> DrafterLease | None:
        self.asked += 1
        return None if self.address is None else DrafterLease(self.address, "test")


@dataclass
class Served:
    """A running target and a stub to it."""

    server: TargetServer
    address: str
    stub: target_pb2_grpc.TargetServiceStub
    channel: grpc.aio.Channel

    async def status(self) -> inference_pb2.TargetStatus:
        return (await self.stub.GetTargetStatus(target_pb2.GetTargetStatusRequest())).target

    async def drafter_state(self, wanted: str) -> None:
        """Returns once the link is in that state."""
        await until(self._state, wanted)

    async def _state(self) -> str:
        return (await self.status()).drafter_state

    async def idle(self) -> None:
        """Returns once no session and no KV page is left."""

        async def left() -> tuple[int, int, int]:
            status = await self.status()
            return status.active_sessions, status.queued_sessions, status.kv_pages_used

        await until(left, (0, 0, 0))


async def until(look: Callable[[], Awaitable[object]], wanted: object) -> None:
    """Looks until it sees `wanted`; fails after PATIENCE_S."""
    async with asyncio.timeout(PATIENCE_S):
        while await look() != wanted:  # noqa: ASYNC110 - what is looked at may be in another process
            await asyncio.sleep(0.005)


@asynccontextmanager
async def target(
    runner: ToyRunner, directory: Directory | None = None, tokenizer: ToyTokenizer | None = None, **config: object
) -> AsyncIterator[Served]:
    """A target on loopback; at its end KV must be empty and whole."""
    settings = {"draft_deadline_ms": 2000.0, "backoff_first_ms": 10.0, "backoff_max_ms": 50.0, **config}
    tokenizer = tokenizer or ToyTokenizer.numbered(runner.info.vocab_size)
    server = TargetServer(TargetConfig(**settings), directory, runner, tokenizer)  # type: ignore[arg-type]
    address = await server.start()
    try:
        async with open_channel(address) as channel:
            yield Served(server, address, target_pb2_grpc.TargetServiceStub(channel), channel)
    finally:
        await server.stop(0.0)
    runner.kv.check_integrity()
    assert runner.kv.pages_used == 0


def speculation(
    budget: int,
    *,
    proposal: common_pb2.Proposal = common_pb2.PROPOSAL_RANKED,
    selection: common_pb2.SelectionRule = common_pb2.SELECTION_RULE_DRAFT,
    wait: common_pb2.WaitMode = common_pb2.WAIT_MODE_DEADLINE,
    **fields: object,
) -> common_pb2.SpeculationParams:
    """Complete parameters."""
    return common_pb2.SpeculationParams(
        draft=True,
        budget=budget,
        proposal=proposal,
        selection=selection,
        wait=wait,
        **fields,  # type: ignore[arg-type]
    )


def message(prompt: Sequence[int], max_tokens: int, *, budget: int = 8, **fields: object) -> target_pb2.DecodeRequest:
    """A complete DecodeRequest, greedy unless `sampling` says otherwise."""
    filled: dict[str, object] = {
        "sampling": common_pb2.SamplingParams(temperature=0.0, top_k=0, top_p=1.0, seed=1),
        "speculation": speculation(budget),
        **fields,
    }
    return target_pb2.DecodeRequest(prompt_tokens=ints_to_bytes(prompt), max_tokens=max_tokens, **filled)  # type: ignore[arg-type]


async def collect(call) -> tuple[list[int], target_pb2.TargetFinish]:
    """Tokens and finish of a Decode call."""
    tokens: list[int] = []
    while (response := await call.read()) is not grpc.aio.EOF:
        if response.WhichOneof("event") == "finish":
            return tokens, response.finish
        tokens += np.frombuffer(response.tokens, dtype="<i4").tolist()
    raise AssertionError("the stream ended without a finish")
