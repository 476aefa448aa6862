"""The store of served text: what it remembers, in how much memory, and what it forgets first."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest

from paceline.drafter.ngrams import LONGEST, context_keys, tenant_start
from paceline.drafter.text_store import MB, TextStore
from paceline.study.store_costs import repetitive_text


def learned(store: TextStore, *texts: list[int], tenant: str = "") -> TextStore:
    for text in texts:
        store.add(text, 0, tenant)
    while store.learn_part():
        pass
    return store


@pytest.mark.parametrize(
    ("text", "least"), [(repetitive_text(12_000), 0.8), (list(range(1000, 11_000)), 0.8), ([500, 501] * 4_000, 0.5)]
)
def test_the_estimate_is_near_what_python_allocates(text: list[int], least: float) -> None:
    """It rounds objects up as the allocator does, so it is above the sum of their sizes, which is traced here."""
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        store = learned(TextStore(100 * MB, keep_texts=True), list(text))
        gc.collect()
        allocated = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert least * store.bytes <= allocated <= 1.02 * store.bytes + 10_000
    assert store.tokens == len(text)


@pytest.mark.parametrize("keep_texts", [False, True])
def test_the_bound_holds_at_every_moment_and_most_of_it_is_used(keep_texts: bool) -> None:
    store = TextStore(2 * MB, keep_texts=keep_texts)
    store.add(repetitive_text(30_000), 0)
    highest = 0
    full = False
    while store.learn_part(room=16):
        assert store.bytes <= store.capacity
        highest = max(highest, store.bytes)
        full = full or len(store.generations()) == 2
        assert not full or store.bytes > 0.25 * store.capacity, "a generation ends before its table doubles"
    assert highest > 0.6 * store.capacity
    assert store.tokens < 30_000


def continuations(store: TextStore, context: list[int]) -> Iterator[dict[int, float]]:
    for grams in store.generations():
        if found := grams.followers(context_keys(context[-LONGEST:], tenant_start(""))[-1]):
            yield found


def test_the_least_recently_learned_goes_first_and_what_comes_again_stays() -> None:
    store = TextStore(MB)
    again = list(range(30_000, 30_010))
    for number in range(60):
        learned(store, repetitive_text(200, seed=number), again)
    first, last = repetitive_text(200, seed=0), repetitive_text(200, seed=59)
    assert list(continuations(store, last[-9:-1]))
    assert list(continuations(store, again[:8])), "learned first, and ever again"
    store_of_one_pass = learned(TextStore(MB), again, *(repetitive_text(200, seed=number) for number in range(60)))
    assert not list(continuations(store_of_one_pass, again[:8]))
    assert sum(first[i + 8] in f for i in range(190) for f in continuations(store, first[i : i + 8])) < 20


def test_a_store_of_nothing_learns_nothing() -> None:
    store = learned(TextStore(0, keep_texts=True), [1, 2, 3])
    assert (store.tokens, store.bytes > 0, len(store.texts().tokens), store.revision) == (0, False, 0, 0)


def test_a_store_too_small_for_a_token_still_works() -> None:
    store = learned(TextStore(1), [1, 2, 3, 4])
    assert store.tokens <= 2


def test_texts_are_kept_whole_without_prompts_and_other_tenants() -> None:
    store = TextStore(MB, keep_texts=True)
    store.add([7, 8, 1, 2, 3], 2)
    store.add([4, 5], 0, "another")
    store.add([6, 6], 2)
    store.add([9, *range(600)], 1)
    assert store.revision == 2
    for _ in range(4):  # nothing learned, then a part of the second, then all
        tokens, lengths = store.texts()
        assert tokens.tolist() == [1, 2, 3, *range(600)]
        assert lengths.tolist() == [3, 600]
        assert tokens.dtype == lengths.dtype == np.int32
        store.learn_part()


def test_kept_texts_are_those_that_are_held() -> None:
    store = TextStore(MB, keep_texts=True)
    for number in range(40):
        learned(store, repetitive_text(300, seed=number))
        tokens, lengths = store.texts()
        assert len(tokens) == lengths.sum() == store.tokens
    assert len(tokens) < 40 * 300
    assert tokens[-300:].tolist() == repetitive_text(300, seed=39)
    assert all(lengths > 0)


def test_what_was_saved_teaches_the_same_again() -> None:
    """But for the first tokens of replies, which followed prompts."""
    first = learned(TextStore(10 * MB, keep_texts=True), repetitive_text(3000), repetitive_text(500, seed=1))
    second = TextStore(10 * MB, keep_texts=True)
    second.preload(first.texts())
    while second.learn_part():
        pass
    assert second._young.grams._followers == first._young.grams._followers
    assert second.revision == 0, "no change that needs saving"
    assert second.texts().tokens.tolist() == first.texts().tokens.tolist()


def test_texts_can_be_read_while_the_store_learns() -> None:
    store = TextStore(MB, keep_texts=True)
    wrong: list[str] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            tokens, lengths = store.texts()
            if len(tokens) != lengths.sum() or (len(tokens) and tokens[-1] != 99):
                wrong.append(f"{len(tokens)} of {lengths.sum()}")

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(30):
            store.add([*repetitive_text(300, seed=number), 99], 0)
            while store.learn_part(room=7):
                pass
    finally:
        stop.set()
        reader.join()
    assert not wrong
