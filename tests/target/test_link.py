"""The link to a drafter, over real gRPC with a drafter of the test's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import grpc
import numpy as np
import pytest

from paceline.rpc.arrays import floats_to_bytes, ints_to_bytes
from paceline.rpc.channels import open_channel
from paceline.speculation.modes import Proposal
from paceline.speculation.sampling import SamplingParams
from paceline.speculation.tree import DraftTree
from paceline.target.backoff import Backoff
from paceline.target.fallback import Fallback
from paceline.target.frames import FrameCodec
from paceline.target.link import MAX_FRAMES, DrafterLink, LinkTiming
from paceline.target.outbox import LoopOutbox
from paceline.target.port import (
    Advance,
    Close,
    DraftEvent,
    DraftFault,
    LinkDown,
    LinkUp,
    Open,
    Retry,
    TreeArrived,
)
from paceline.target.request import DraftWish
from paceline.v1 import common_pb2, draft_pb2
from target.wire import PATIENCE_S, Directory, WireDrafter, serving, until

CODEC = FrameCodec(tokenizer_fingerprint="ours", vocab_size=50, max_nodes=8, max_depth=4)


def opened(
    session: int = 7, epoch: int = 1, budget: int = 4, wish: DraftWish | None = None, strength: float = 0.0
) -> Open:
    return Open(
        session=session,
        epoch=epoch,
        context=np.asarray([1, 2, 3], dtype=np.int32),
        prompt_length=2,
        wish=wish or DraftWish(8),
        sampling=SamplingParams(temperature=0.7, top_k=5, top_p=0.9, seed=2**63 + 1, choice=3),
        eos_token_ids=(4, 5),
        learn=True,
        budget=budget,
        strength=strength,
    )


class Harness:
    """A link whose events are collected, and which sleeps only as long as the test says."""

    def __init__(self, directory: Directory) -> None:
        self.events: asyncio.Queue[DraftEvent] = asyncio.Queue()
        self.outbox = LoopOutbox(asyncio.get_running_loop())
        self.pauses: list[float] = []
        self.go = asyncio.Semaphore(1000)
        self.link = DrafterLink(
            directory,
            CODEC,
            LinkTiming(connect_timeout_s=1.0, backoff_first_s=0.1, backoff_longest_s=1.0),
            events=self.put,
            outbox=self.outbox,
            open_channel=open_channel,
            sleep=self.sleep,
            random=lambda: 0.0,
        )

    def put(self, events: Iterable[DraftEvent]) -> None:
        for event in events:
            self.events.put_nowait(event)

    async def sleep(self, pause_s: float) -> None:
        self.pauses.append(pause_s)
        await self.go.acquire()
        await asyncio.sleep(0.001)

    async def next(self) -> DraftEvent:
        async with asyncio.timeout(PATIENCE_S):
            return await self.events.get()

    async def up(self) -> int:
        """The generation of the next connection; skips what is told of failures before."""
        while not isinstance(event := await self.next(), LinkUp):
            assert isinstance(event, LinkDown)
        assert event.proposer == "wire"
        return event.generation

    def send(self, generation: int, *updates: Open | Advance | Close) -> bool:
        sent = self.link.send(generation, updates)
        self.outbox.flush()
        return sent

    async def __aenter__(self) -> Harness:
        self.task = asyncio.create_task(self.link.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def test_frames_of_a_step_travel_together_and_trees_come_back() -> None:
    drafter = WireDrafter(lambda context, budget: DraftTree.chain([sum(context) % 50]))
    async with serving(drafter) as address, Harness(Directory(address)) as harness:
        generation = await harness.up()
        assert harness.link.state == "ready"
        assert harness.link.address == address
        coupled = opened(session=8, epoch=3, budget=2, wish=DraftWish(8, Proposal.COUPLED), strength=2.5)
        assert harness.send(generation, opened(), coupled)
        trees = [await harness.next(), await harness.next()]
        assert [(tree.session, tree.epoch, tree.base_length) for tree in trees] == [(7, 1, 3), (8, 3, 3)]  # type: ignore[union-attr]
        assert harness.send(generation, Advance(7, 1, 3, np.asarray([9], dtype=np.int32), 4), Close(8, 3))
        tree = await harness.next()
        assert isinstance(tree, TreeArrived)
        assert (tree.base_length, tree.tree.tokens.tolist()) == (4, [15])
        status = await harness.link.drafter_status()
        assert status is not None
        assert (status.proposer, status.sessions) == ("wire", 1)
    first, second = drafter.requests
    assert len(first.updates) == 2
    assert second.updates[1].WhichOneof("update") == "close"
    ranked_open, coupled_open = (update.open for update in first.updates)
    assert ranked_open.context_tokens == ints_to_bytes([1, 2, 3])
    assert (ranked_open.prompt_length, ranked_open.budget, ranked_open.vocab_size) == (2, 4, 50)
    assert ranked_open.tokenizer_fingerprint == "ours"
    assert ranked_open.options.proposal == common_pb2.PROPOSAL_RANKED
    assert not ranked_open.options.sampling.HasField("seed"), "the seed travels for coupled proposals only"
    assert ranked_open.options.sampling.top_p == 0.9
    assert list(ranked_open.options.eos_token_ids) == [4, 5]
    assert ranked_open.options.learn
    assert coupled_open.options.proposal == common_pb2.PROPOSAL_COUPLED
    assert (coupled_open.options.strength, coupled_open.options.sampling.seed) == (2.5, 2**63 + 1)
    assert (ranked_open.options.choice, coupled_open.options.choice) == (0, 3), (
        "it addresses the noise, as the seed does"
    )


@pytest.mark.parametrize(
    ("reply", "reason", "retry"),
    [
        ({"tree": draft_pb2.DraftTree(base_length=3, tokens=b"abc")}, Fallback.INVALID, Retry.ASK),
        (
            {"tree": draft_pb2.DraftTree(base_length=3, tokens=ints_to_bytes([1, 2]), parents=ints_to_bytes([1, 0]))},
            Fallback.INVALID,
            Retry.ASK,
        ),
        (
            {"tree": draft_pb2.DraftTree(base_length=3, tokens=ints_to_bytes([50]), parents=ints_to_bytes([-1]))},
            Fallback.INVALID,
            Retry.ASK,
        ),
        (
            {
                "tree": draft_pb2.DraftTree(
                    base_length=3, tokens=ints_to_bytes(range(9)), parents=ints_to_bytes([-1] * 9)
                )
            },
            Fallback.INVALID,
            Retry.ASK,
        ),
        (
            {
                "tree": draft_pb2.DraftTree(
                    base_length=3, tokens=ints_to_bytes(range(5)), parents=ints_to_bytes(range(-1, 4))
                )
            },
            Fallback.INVALID,
            Retry.ASK,
        ),
        (
            {
                "tree": draft_pb2.DraftTree(
                    base_length=3,
                    tokens=ints_to_bytes([1]),
                    parents=ints_to_bytes([-1]),
                    log_probs=floats_to_bytes([float("nan")]),
                )
            },
            Fallback.INVALID,
            Retry.ASK,
        ),
        ({"evicted": draft_pb2.SessionEvicted(reason="full")}, Fallback.EVICTED, Retry.LATER),
        ({"error": draft_pb2.SessionError(code=1)}, Fallback.TOKENIZER_MISMATCH, Retry.NEVER),
        ({"error": draft_pb2.SessionError(code=2)}, Fallback.CONTEXT_LIMIT, Retry.NEVER),
        ({"error": draft_pb2.SessionError(code=3)}, Fallback.INVALID, Retry.REOPEN),
        ({"error": draft_pb2.SessionError(code=4)}, Fallback.EVICTED, Retry.LATER),
        ({"error": draft_pb2.SessionError(code=5)}, Fallback.INTERNAL, Retry.LATER),
        ({"error": draft_pb2.SessionError(code=77)}, Fallback.INVALID, Retry.LATER),
        ({}, Fallback.INVALID, Retry.ASK),
    ],
)
async def test_whatever_is_wrong_becomes_a_fault_of_its_session(
    reply: dict[str, object], reason: Fallback, retry: Retry
) -> None:
    message = draft_pb2.SessionReply(session=7, epoch=2, **reply)  # type: ignore[arg-type]
    (event,) = CODEC.events(draft_pb2.DraftResponse(replies=[message]), 1.0)
    assert isinstance(event, DraftFault)
    assert (event.session, event.epoch, event.reason, event.retry) == (7, 2, reason, retry)


async def test_a_stream_that_ends_is_renewed_with_a_new_number() -> None:
    drafter = WireDrafter(lambda context, budget: DraftTree.empty())
    async with serving(drafter) as address, Harness(Directory(address)) as harness:
        first = await harness.up()
        drafter.end_streams.set()
        assert await harness.next() == LinkDown(Fallback.LOST)
        drafter.end_streams.clear()
        second = await harness.up()
        assert second > first
        assert harness.send(first, opened()), "a frame for the old connection is dropped"
        assert harness.send(second, opened(session=9))
        event = await harness.next()
        assert isinstance(event, TreeArrived)
        assert event.session == 9
    assert [update.session for request in drafter.requests for update in request.updates] == [9]


async def test_a_drafter_that_goes_away_is_found_elsewhere() -> None:
    directory = Directory()
    async with Harness(directory) as harness:
        assert await harness.next() == LinkDown(Fallback.ABSENT)
        assert harness.link.state == "absent"
        async with serving(WireDrafter(lambda context, budget: None)) as address:
            directory.address = address
            await harness.up()
        assert await harness.next() == LinkDown(Fallback.LOST)
        assert harness.link.address == ""
        async with serving(WireDrafter(lambda context, budget: None)) as address:
            directory.address = address
            await harness.up()
            assert harness.link.address == address


async def test_pauses_grow_while_nobody_is_there_and_shrink_once_somebody_answers() -> None:
    directory = Directory()
    async with Harness(directory) as harness:
        for _ in range(6):
            assert await harness.next() == LinkDown(Fallback.ABSENT)
        assert harness.pauses[:5] == [0.05, 0.1, 0.2, 0.4, 0.5]
        drafter = WireDrafter(lambda context, budget: DraftTree.empty())
        async with serving(drafter) as address:
            directory.address = address
            generation = await harness.up()
            harness.send(generation, opened())
            await harness.next()
            harness.pauses.clear()
            drafter.end_streams.set()
            assert await harness.next() == LinkDown(Fallback.LOST)
            drafter.end_streams.clear()
            await harness.up()
            assert harness.pauses[0] == 0.05


@pytest.mark.parametrize("code", [grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE])
async def test_a_full_or_draining_drafter_is_tried_again_later(code: grpc.StatusCode) -> None:
    drafter = WireDrafter(lambda context, budget: None)
    drafter.refuse = code
    async with serving(drafter) as address, Harness(Directory(address)) as harness:
        for _ in range(2):
            await harness.up()
            assert await harness.next() == LinkDown(Fallback.LOST)
        assert drafter.streams == 0
        drafter.refuse = None
        await until(drafter.stream_count, 1)
        assert harness.link.state == "ready"


async def test_another_tokenizer_is_refused_before_any_session() -> None:
    drafter = WireDrafter(lambda context, budget: None, fingerprint="theirs")
    async with serving(drafter) as address, Harness(Directory(address)) as harness:
        assert await harness.next() == LinkDown(Fallback.TOKENIZER_MISMATCH)
        assert drafter.streams == 0
        drafter.fingerprint = "ours"
        await harness.up()


async def test_a_directory_that_raises_or_hangs_is_as_good_as_an_empty_one() -> None:
    class Broken(Directory):
        async def lease(self):
            self.asked += 1
            if self.asked == 1:
                raise RuntimeError("no controller")
            if self.asked == 2:
                await asyncio.Event().wait()
            return await super().lease()

    async with Harness(Broken()) as harness:
        for _ in range(3):
            assert await harness.next() == LinkDown(Fallback.ABSENT)


async def test_a_drafter_that_does_not_read_fills_a_bounded_queue() -> None:
    drafter = WireDrafter(lambda context, budget: None)
    drafter.awake.clear()
    async with serving(drafter) as address, Harness(Directory(address)) as harness:
        generation = await harness.up()
        big = Advance(7, 1, 3, np.zeros(200_000, dtype=np.int32), 0)
        sent = 0
        while harness.send(generation, big):
            sent += 1
            await asyncio.sleep(0)
            assert sent < 10 * MAX_FRAMES
        assert sent >= MAX_FRAMES
        drafter.awake.set()


async def test_the_seed_of_the_jitter_and_the_limit_of_pauses() -> None:
    pauses = Backoff(0.1, 2.0, iter([0.0, 0.999, 0.5, 0.0, 0.0, 0.0, 0.0]).__next__)
    assert [round(pauses.next_s(), 3) for _ in range(6)] == [0.05, 0.2, 0.3, 0.4, 0.8, 1.0]
    pauses.reset()
    assert pauses.next_s() == 0.05
