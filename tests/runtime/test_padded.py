"""Sessions of like shape attended as one batch: the numbers are those of a call for each."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paceline.runtime import padded
from paceline.runtime.attention import PassLayout, lay_out
from paceline.runtime.kv import KVCache, TensorStorage
from paceline.runtime.padded import alike
from paceline.runtime.plan import PassPlan, Segment

HEADS, GROUPS, DIM, CPU = 2, 3, 8, torch.device("cpu")


def mixed(seed: int, copied: int, monkeypatch: pytest.MonkeyPatch) -> tuple[PassLayout, torch.Tensor]:
    """A pass over four sessions, some on scattered pages, with trees of up to three new nodes that grew before."""
    monkeypatch.setitem(padded.COPIED, "cpu", copied)
    random, draws = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    storage = TensorStorage.allocate(2, HEADS, DIM, 256, torch.float32, CPU)
    storage.whole.normal_(generator=draws)
    kv = KVCache(64, 4, storage)
    sequences = [kv.open() for _ in range(4)]
    for _ in range(5):
        for sequence in sequences:
            count = int(random.integers(2, 4))
            kv.begin(sequence, count)
            kv.keep(sequence, range(count))
    assert any(kv.run(sequence).start is None for sequence in sequences)
    segments = []
    for sequence in sequences:
        base, count = int(random.integers(0, 3)), int(random.integers(2, 4))
        if base:
            kv.begin(sequence, base)
        parents = np.array([random.integers(-1, node) for node in range(base + count)], np.int32)
        segments.append(Segment(sequence, np.zeros(count, np.int32), parents, ()))
    layout = lay_out(PassPlan(tuple(segments)), kv, storage, GROUPS, 256)
    query = torch.randn((HEADS, layout.tokens, GROUPS, DIM), generator=draws)
    return layout, layout.mix(1, query, None)


@pytest.mark.parametrize("seed", range(6))
def test_a_batch_equals_a_call_for_each(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    layout, alone = mixed(seed, 0, monkeypatch)
    assert layout.batch is None
    layout, together = mixed(seed, 2**20, monkeypatch)
    assert layout.batch is not None
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("counts", "visible", "right"),
    [
        ([1, 1], [64, 64], True),
        ([1], [64], False),  # nothing to save
        ([1, 1], [64, 200], False),  # too much to copy
        ([8, 5, 6], [40, 30, 50], True),
        ([16, 1, 1], [60, 60, 60], False),  # nodes unlike
        ([1, 1, 1], [80, 5, 5], False),  # positions unlike
    ],
)
def test_which_passes_are_batches(counts: list[int], visible: list[int], right: bool) -> None:
    assert alike(counts, visible, 1536, CPU) is right
