"""KV pages: ownership, compaction, forks, and the same contents whatever the layout."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paceline.runtime.kv import KVCache, OutOfPages, TensorStorage


def cache(pages: int = 8, page_size: int = 4) -> tuple[KVCache, TensorStorage]:
    storage = TensorStorage.allocate(2, 1, 1, pages * page_size, torch.float32, torch.device("cpu"))
    return KVCache(pages, page_size, storage), storage


def write(kv: KVCache, storage: TensorStorage, sequence: int, values: list[int], base: int = 0) -> None:
    slots = torch.from_numpy(kv.begin(sequence, len(values), base))
    storage.whole[:, :, 0, slots, 0] = torch.tensor(values, dtype=torch.float32)


def committed(kv: KVCache, storage: TensorStorage, sequence: int) -> list[int]:
    run = kv.run(sequence)
    slots = np.arange(run.start, run.start + run.count) if run.start is not None else run.slots
    keys, values = storage.whole[0, 0], storage.whole[1, 1]
    found = values[0, torch.from_numpy(slots), 0].tolist()[: kv.length(sequence)]
    assert found == keys[0, torch.from_numpy(slots), 0].tolist()[: kv.length(sequence)]
    return [int(value) for value in found]


@pytest.mark.parametrize("path", [[], [0], [2], [0, 3], [1, 4, 8], [0, 1, 2], list(range(9))])
def test_keep_commits_a_path_in_order_and_forgets_the_rest(path: list[int]) -> None:
    kv, storage = cache()
    sequence = kv.open()
    write(kv, storage, sequence, [100, 101, 102])
    kv.keep(sequence, range(3))
    write(kv, storage, sequence, list(range(9)))
    kv.keep(sequence, path)
    assert committed(kv, storage, sequence) == [100, 101, 102, *path]
    kv.check_integrity()


@pytest.mark.parametrize("path", [[9], [-1], [3, 2], [1, 1]])
def test_a_path_outside_the_pass_is_refused(path: list[int]) -> None:
    kv, storage = cache()
    sequence = kv.open()
    write(kv, storage, sequence, list(range(9)))
    with pytest.raises(ValueError, match="ascend"):
        kv.keep(sequence, path)


def test_a_tree_may_grow_over_several_passes() -> None:
    kv, storage = cache()
    sequence = kv.open()
    write(kv, storage, sequence, [1, 2])
    write(kv, storage, sequence, [3, 4], base=2)
    with pytest.raises(ValueError, match="base 9"):
        kv.begin(sequence, 1, base=9)
    kv.keep(sequence, [1, 2])
    assert committed(kv, storage, sequence) == [2, 3]


def test_reserved_pages_are_promised() -> None:
    kv, _ = cache(pages=4)
    sequence = kv.open(reserve_tokens=13)
    assert kv.pages_used == 4
    assert not kv.fits(1)
    with pytest.raises(OutOfPages, match="1 KV pages wanted, 0 of 4 are free"):
        kv.open(reserve_tokens=1)
    kv.release(sequence)
    assert kv.pages_used == 0
    assert kv.fits(16)


def test_running_out_leaves_the_sequence_as_it_was() -> None:
    kv, storage = cache(pages=2)
    sequence = kv.open()
    write(kv, storage, sequence, [1, 2, 3])
    kv.keep(sequence, range(3))
    with pytest.raises(OutOfPages):
        kv.begin(sequence, 6)
    kv.check_integrity()
    assert committed(kv, storage, sequence) == [1, 2, 3]
    write(kv, storage, sequence, [4, 5, 6, 7, 8])
    kv.keep(sequence, range(5))
    assert committed(kv, storage, sequence) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_fork_shares_full_pages_and_neither_sees_the_other() -> None:
    kv, storage = cache()
    first = kv.open()
    write(kv, storage, first, list(range(10)))
    kv.keep(first, range(10))
    used = kv.pages_used
    second = kv.fork(first)
    assert kv.pages_used == used + 1, "two full pages are shared, the partial one is copied"
    write(kv, storage, first, [20, 21, 22])
    kv.keep(first, range(3))
    write(kv, storage, second, [30])
    kv.keep(second, [0])
    kv.check_integrity()
    assert committed(kv, storage, first) == [*range(10), 20, 21, 22]
    assert committed(kv, storage, second) == [*range(10), 30]
    kv.release(first)
    assert committed(kv, storage, second) == [*range(10), 30]


def test_a_shared_page_is_copied_before_it_is_written() -> None:
    kv, storage = cache()
    first = kv.open()
    write(kv, storage, first, list(range(8)))
    kv.keep(first, range(8))
    second = kv.fork(first)
    kv.truncate(second, 6)
    write(kv, storage, second, [60, 70])
    kv.keep(second, range(2))
    kv.check_integrity()
    assert committed(kv, storage, first) == list(range(8))
    assert committed(kv, storage, second) == [0, 1, 2, 3, 4, 5, 60, 70]


def test_running_out_of_copies_takes_no_page() -> None:
    kv, storage = cache(pages=3)
    first = kv.open()
    write(kv, storage, first, list(range(8)))
    kv.keep(first, range(8))
    second = kv.fork(first)
    kv.truncate(second, 6)
    with pytest.raises(OutOfPages, match="2 KV pages wanted, 1 of 3 are free"):
        kv.begin(second, 6)
    assert kv.pages_used == 2
    assert committed(kv, storage, second) == [0, 1, 2, 3, 4, 5]
    write(kv, storage, second, [60, 70])
    assert kv.pages_used == 3


def test_a_reservation_does_not_pay_for_a_copy() -> None:
    """Reserved pages behind a shared one are the sequence's own; the copy still needs a page of its own."""
    kv, storage = cache(pages=4)
    first = kv.open()
    write(kv, storage, first, list(range(8)))
    kv.keep(first, range(8))
    second = kv.fork(first, reserve_tokens=16)
    kv.truncate(second, 6)
    with pytest.raises(OutOfPages, match="1 KV pages wanted, 0 of 4 are free"):
        kv.begin(second, 1)
    kv.check_integrity()
    kv.release(first)
    write(kv, storage, second, [60])
    kv.keep(second, [0])
    assert committed(kv, storage, second) == [0, 1, 2, 3, 4, 5, 60]


def test_a_copied_prefix_stands_in_the_copys_own_run() -> None:
    kv, storage = cache()
    first = kv.open()
    write(kv, storage, first, list(range(10)))
    kv.keep(first, range(10))
    second = kv.open(reserve_tokens=12)
    used = kv.pages_used
    kv.copy_prefix(first, second, 7)
    assert kv.pages_used == used, "it had reserved them, and keeps them"
    assert kv.run(second).start is not None, "one interval, so that attention sees it without a copy"
    write(kv, storage, second, [70, 80])
    kv.keep(second, range(2))
    kv.check_integrity()
    kv.release(first)
    assert committed(kv, storage, second) == [*range(7), 70, 80]


def test_a_prefix_is_copied_past_pages_that_others_share() -> None:
    kv, storage = cache()
    first, other = kv.open(), kv.open()
    write(kv, storage, first, list(range(8)))
    kv.keep(first, range(8))
    write(kv, storage, other, list(range(50, 58)))
    kv.keep(other, range(8))
    copy = kv.fork(other)
    kv.truncate(copy, 0)
    kv.copy_prefix(first, copy, 6)
    kv.check_integrity()
    assert committed(kv, storage, copy) == list(range(6))
    assert committed(kv, storage, other) == list(range(50, 58))


def test_a_prefix_that_is_not_there_is_refused() -> None:
    kv, storage = cache(pages=3)
    first, second = kv.open(), kv.open()
    write(kv, storage, first, list(range(8)))
    kv.keep(first, range(8))
    with pytest.raises(ValueError, match="tokens 9, allowed: 0 to 8"):
        kv.copy_prefix(first, second, 9)
    with pytest.raises(ValueError, match="has 8 tokens, allowed: none"):
        kv.copy_prefix(second, first, 0)
    with pytest.raises(OutOfPages):
        kv.copy_prefix(first, second, 8)
    assert (kv.length(second), kv.pages_used) == (0, 2)


def test_ids_are_never_used_again() -> None:
    kv, _ = cache()
    seen = set()
    for _ in range(20):
        sequence = kv.open()
        assert sequence not in seen
        seen.add(sequence)
        kv.release(sequence)
    with pytest.raises(KeyError):
        kv.length(1)


def test_a_wrong_book_is_seen() -> None:
    kv, _ = cache()
    kv.open(reserve_tokens=4)
    kv._owners[0] += 1
    with pytest.raises(AssertionError, match="do not add up"):
        kv.check_integrity()


@pytest.mark.parametrize("seed", range(6))
def test_random_use_keeps_every_sequence_whole(seed: int) -> None:
    random = np.random.default_rng(seed)
    kv, storage = cache(pages=24, page_size=int(random.choice([1, 3, 4, 16])))
    expected: dict[int, list[int]] = {}
    value = 0
    for _ in range(400):
        action = random.integers(7)
        try:
            if action == 0 or not expected:
                expected[kv.open(reserve_tokens=int(random.integers(0, 20)))] = []
            else:
                sequence = int(random.choice(list(expected)))
                if action in (1, 2, 3):
                    count = int(random.integers(1, 10))
                    values = list(range(value, value + count))
                    value += count
                    write(kv, storage, sequence, values)
                    path = sorted(random.choice(count, size=int(random.integers(0, count + 1)), replace=False).tolist())
                    kv.keep(sequence, path)
                    expected[sequence] += [values[node] for node in path]
                elif action == 4:
                    expected[kv.fork(sequence, int(random.integers(0, 30)))] = list(expected[sequence])
                elif action == 5:
                    copy, length = kv.open(), int(random.integers(0, len(expected[sequence]) + 1))
                    expected[copy] = []
                    kv.copy_prefix(sequence, copy, length)
                    expected[copy] = expected[sequence][:length]
                elif random.random() < 0.5:
                    length = int(random.integers(0, len(expected[sequence]) + 1))
                    kv.truncate(sequence, length)
                    del expected[sequence][length:]
                else:
                    kv.release(sequence)
                    del expected[sequence]
        except OutOfPages:
            victim = next(iter(expected))
            kv.release(victim)
            del expected[victim]
        kv.check_integrity()
    for sequence, values in expected.items():
        assert committed(kv, storage, sequence) == values
        kv.release(sequence)
    assert kv.pages_used == 0
