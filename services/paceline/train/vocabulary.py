"""Which of the target's tokens a student's head has: the most frequent ones of the corpus's replies."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from paceline.train.corpus import Corpus


def frequent_tokens(corpus: Corpus, size: int, vocab_size: int, special: Iterable[int]) -> NDArray[np.int32]:
    """The ids of the head, ascending: [at most size] int32.

    Ranked by how often replies hold a token, then by the probability that the teacher gave it. Special ids that occur
    in replies come before all others. Tokens that neither occur nor have any probability are left out.

    Args:
        corpus: the corpus.
        size: most tokens.
        vocab_size: ids of the target.
        special: ids with a role, such as those that end a reply.
    """
    counts = np.zeros(vocab_size, dtype=np.int64)
    mass = np.zeros(vocab_size, dtype=np.float64)
    for index in range(len(corpus)):
        written = corpus[index]
        np.add.at(counts, written.tokens[written.prompt_length :], 1)
        np.add.at(mass, written.row_ids, np.exp(written.row_log_probs.astype(np.float32)))
    first = np.zeros(vocab_size, dtype=bool)
    first[[token for token in special if token < vocab_size]] = True
    first &= (counts > 0) | (mass > 0)
    order = np.lexsort((mass, counts, first))[::-1]
    chosen = order[(counts[order] > 0) | (mass[order] > 0)][:size]
    return np.sort(chosen).astype(np.int32)
