"""The study of overlap: its parts, and a small run under the real engines."""

from __future__ import annotations

import asyncio
import time

import pytest

from paceline.drafter.model import ModelProposer
from paceline.runtime.toy_tokenizer import ToyTokenizer
from paceline.speculation.modes import Selection, WaitFor
from paceline.speculation.tree import DraftTree
from paceline.study.overlap import Pair, Variant, Work, measure
from paceline.study.round_times import round_times
from paceline.study.slow_model import SlowModel, tables
from paceline.study.slow_wire import delayed
from paceline.target.record import RoundRecord

NOTHING = DraftTree.empty()


def record(
    rule: str, start: float, end: float, tokens: int, *, tree: DraftTree = NOTHING, focused: bool = False
) -> RoundRecord:
    accepted = tuple(range(tokens - 1))
    return RoundRecord(
        1, "", 5, tree, accepted, 0, (0,) * tokens, None, start - 3, start - 1, start, end, 1 + len(tree), rule,
        focused=focused,
    )  # fmt: skip


def test_a_round_of_draw_first_is_its_row_pass_and_the_pass_below_the_token() -> None:
    tree = DraftTree.chain([1, 2, 3])
    rounds = []
    for number in range(4):
        at = number * 10.0
        rounds += [
            record("draw_first", at, at + 3, 1),
            record("draw_first", at + 5, at + 9, 3, tree=tree, focused=True),
        ]
    found = round_times(rounds)
    assert found.rounds == 2
    assert found.round_s == pytest.approx(10.0)
    assert found.verify_s == pytest.approx(4.0)
    assert found.exposed_s == pytest.approx(3.0), "2 between the passes, 1 before the first"
    assert (found.accepted, found.emitted, found.hit_share, found.draft_s) == (2.0, 4.0, 1.0, 2.0)
    with pytest.raises(ValueError, match="rounds"):
        round_times(rounds[:4])


async def test_the_wire_holds_bytes_back_and_keeps_their_order() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, delayed(f"127.0.0.1:{port}", 0.04) as address:
        host, _, number = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(number))
        started = time.perf_counter()
        for part in (b"one", b"two", b"three"):
            writer.write(part)
            await asyncio.sleep(0.001)
        assert await reader.readexactly(11) == b"onetwothree"
        assert time.perf_counter() - started >= 0.04
        writer.close()


@pytest.mark.parametrize(
    "variant",
    [
        Variant("draft", Selection.DRAFT),
        Variant("rerank", Selection.RERANK, serial=True),
        Variant("draw_first", Selection.DRAW_FIRST),
        Variant("never idle", Selection.DRAW_FIRST, WaitFor.NEVER),
        Variant("auto", Selection.AUTO),
    ],
    ids=lambda variant: variant.name,
)
def test_a_cell_is_measured_under_the_real_engines(variant: Variant) -> None:
    """Passes of 4 ms, 2 ms a level: no pass is shorter than that, and the figures fit together."""
    target, drafter = tables(16, 0.7, 3)
    tokenizer = ToyTokenizer.numbered(16)
    proposer = ModelProposer(
        SlowModel(drafter, 0.002), tokenizer.fingerprint, max_depth=3, width=4, step_tokens=64, min_path_prob=0.0
    )
    pair = Pair(SlowModel(target, 0.004), tokenizer, proposer)
    cell = asyncio.run(measure(pair, variant, Work([[1, 2]], 40, 4, 1.0), 0.002))
    assert cell["verify_ms"] >= 4.0
    assert cell["round_ms"] >= cell["verify_ms"]
    assert 0 < cell["busy_share"] <= 1
    assert cell["tokens_per_pass"] > 0.8
    if variant.rule is Selection.DRAFT:
        assert cell["draft_ms"] >= 2 + 3 * 2
        rounds = cell["rounds"]  # the last one may be without a tree: nothing is left to guess
        assert cell["round_ms"] * rounds >= (cell["draft_ms"] + 4) * (rounds - 1) + 4
