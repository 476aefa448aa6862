"""The target writes a corpus: what a sequence is, that company does not matter, and going on after a break."""

from __future__ import annotations

import io
import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from rich.progress import Progress
from transformers import PreTrainedTokenizerFast

from paceline.errors import InvalidField
from paceline.runtime.tokenizer import load_tokenizer
from paceline.runtime.toy import ToyRunner
from paceline.train.corpus import Corpus, CorpusDamaged, CorpusInfo, Written, read_info
from paceline.train.making import SHARD, make_corpus
from paceline.train.turns import UserTurn
from paceline.train.writing import Writer, WritingSettings
from support.tiny import byte_level_tokenizer, save_tokenizer

VOCAB, EOS = 8, 7
TURN = UserTurn(before=(0, 1), behind=(EOS, 2))
SETTINGS = WritingSettings(batch=4, temperatures=(0.0, 1.0), prompt_tokens=5, reply_tokens=6, rows=3, seed=11)
INFO = CorpusInfo("toy", "f", VOCAB, SETTINGS.rows, {"seed": 11})


def toy() -> ToyRunner:
    table = np.random.default_rng(5).dirichlet(np.ones(VOCAB), size=VOCAB)
    return ToyRunner(table, eos=frozenset({EOS}))


def written(settings: WritingSettings, numbers: list[int], given: list[list[int]] | None = None) -> dict[int, Written]:
    runner = toy()
    found = dict(Writer(runner, TURN, given or [], settings).write(iter(numbers), lambda _: None))
    assert runner.kv.sequences == 0
    return found


def same(one: Written, other: Written) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in Written.__slots__)


def quiet() -> Progress:
    return Progress(console=Console(file=io.StringIO()))


def test_a_sequence_is_a_user_turn_and_a_reply() -> None:
    for number, each in written(SETTINGS, list(range(40))).items():
        tokens = each.tokens.tolist()
        assert tokens[:2] == [0, 1]
        assert tokens[each.prompt_length - 2 : each.prompt_length] == [EOS, 2]
        said = tokens[2 : each.prompt_length - 2]
        assert len(said) <= 5
        assert EOS not in said
        reply = tokens[each.prompt_length :]
        assert 1 <= len(reply) <= 6
        assert EOS not in reply[:-1]
        assert len(reply) == 6 or reply[-1] == EOS
        assert each.temperature == SETTINGS.temperatures[number % 2]


def test_rows_are_of_the_teacher_at_temperature_one() -> None:
    runner = toy()
    for each in written(SETTINGS, list(range(10))).values():
        before = each.tokens[each.prompt_length - 1 : -1]
        for token, ids, log_probs, drawn in zip(
            before, each.row_ids, each.row_log_probs, each.tokens[each.prompt_length :], strict=True
        ):
            probs = np.exp(runner._logits[token].numpy().astype(np.float64))
            assert ids.tolist() == np.argsort(-probs)[:3].tolist()
            np.testing.assert_allclose(np.exp(log_probs.astype(np.float64)), probs[ids], rtol=2e-3)
            if each.temperature == 0:
                assert drawn == ids[0]


def test_company_does_not_matter() -> None:
    alone = {number: written(SETTINGS, [number])[number] for number in range(12)}
    together = written(replace(SETTINGS, batch=7), list(range(12)))
    assert all(same(alone[number], together[number]) for number in range(12))


def test_draws_follow_the_row() -> None:
    """The first token of 4 000 replies at temperature 1 by a G-test; false alarm 1e-6."""
    from scipy.stats import chi2

    settings = replace(SETTINGS, temperatures=(1.0,), reply_tokens=1, batch=256)
    runner = toy()
    replies = written(settings, list(range(4000)), given=[[0, 3]] * 4000)
    assert len(replies) == 4000
    probs = np.exp(runner._logits[3].numpy().astype(np.float64))
    seen = np.bincount([int(each.tokens[-1]) for each in replies.values()], minlength=VOCAB)
    statistic = 2 * sum(count * np.log(count / (4000 * prob)) for count, prob in zip(seen, probs, strict=True) if count)
    assert statistic < chi2.isf(1e-6, VOCAB - 1)


def test_given_prompts_are_answered_at_every_temperature() -> None:
    given = [[0, 3], [4, 5, 6]]
    found = written(SETTINGS, list(range(5)), given)
    told = [(each.tokens[: each.prompt_length].tolist(), each.temperature) for _, each in sorted(found.items())]
    assert told[:4] == [([0, 3], 0.0), ([4, 5, 6], 0.0), ([0, 3], 1.0), ([4, 5, 6], 1.0)]
    assert told[4][0][:2] == [0, 1]  # beyond them the target writes its own


def test_prompts_begin_with_openings_in_turn() -> None:
    openings = [[3], [4, 5]]
    found = dict(Writer(toy(), TURN, [], SETTINGS, openings).write(iter(range(8)), lambda _: None))
    for number, each in found.items():
        opening = openings[number // 2 % 2]  # each is replied to at both temperatures
        assert each.tokens[2 : 2 + len(opening)].tolist() == opening
        own = each.prompt_length - len(TURN.before) - len(opening) - len(TURN.behind)
        assert 0 <= own <= SETTINGS.prompt_tokens
        assert each.temperature == SETTINGS.temperatures[number % 2]
    assert len({tuple(each.tokens[: each.prompt_length].tolist()) for each in found.values()}) > 2


def test_a_broken_run_goes_on(tmp_path: Path) -> None:
    sequences = 2 * SHARD + 10
    whole = make_corpus(tmp_path / "whole", INFO, Writer(toy(), TURN, [], SETTINGS), sequences, quiet())
    assert [shard.sequences for shard in whole.info.shards] == [SHARD, SHARD, 10]
    first = make_corpus(tmp_path / "parts", INFO, Writer(toy(), TURN, [], SETTINGS), SHARD + 3, quiet())
    assert first.info.sequences == SHARD + 3
    make_corpus(tmp_path / "parts", INFO, Writer(toy(), TURN, [], SETTINGS), sequences, quiet())
    one, other = Corpus.open(tmp_path / "whole"), Corpus.open(tmp_path / "parts")
    assert len(one) == len(other) == sequences
    assert all(same(*pair) for pair in zip(one, other, strict=True))
    assert one.info.tokens == sum(len(each.tokens) for each in one)
    assert one.info.reply_tokens == sum(len(each.row_ids) for each in one)
    again = make_corpus(tmp_path / "whole", INFO, Writer(toy(), TURN, [], SETTINGS), sequences, quiet())
    assert again.tokens_per_s == 0


def test_another_setting_is_refused_by_name(tmp_path: Path) -> None:
    make_corpus(tmp_path, INFO, Writer(toy(), TURN, [], SETTINGS), 1, quiet())
    with pytest.raises(InvalidField, match=r"seed: got 12, allowed: 11"):
        make_corpus(tmp_path, replace(INFO, settings={"seed": 12}), Writer(toy(), TURN, [], SETTINGS), 2, quiet())


def test_a_break_in_a_pass_frees_the_slots() -> None:
    runner = toy()
    sequences = Writer(runner, TURN, [], SETTINGS).write(itertools.count(), lambda _: None)
    next(sequences)
    assert runner.kv.sequences > 0
    sequences.close()
    assert runner.kv.sequences == 0
    runner.kv.check_integrity()


def test_damage_is_named(tmp_path: Path) -> None:
    with pytest.raises(CorpusDamaged, match=r"corpus\.json cannot be read"):
        Corpus.open(tmp_path)
    make_corpus(tmp_path, INFO, Writer(toy(), TURN, [], SETTINGS), 2, quiet())
    np.save(tmp_path / "000000" / "tokens.npy", np.asarray([1, 2], dtype=np.int32))
    with pytest.raises(CorpusDamaged, match=r"000000: 2 sequences of 2 tokens"):
        Corpus.open(tmp_path)
    (tmp_path / "000000" / "row_ids.npy").unlink()
    with pytest.raises(CorpusDamaged, match=r"row_ids\.npy cannot be read"):
        Corpus.open(tmp_path)
    info = json.loads((tmp_path / "corpus.json").read_text())
    (tmp_path / "corpus.json").write_text(json.dumps({**info, "version": 99}))
    with pytest.raises(CorpusDamaged, match="not of a corpus of version 1"):
        read_info(tmp_path)


def test_the_turn_is_found_in_the_template(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(save_tokenizer(tmp_path))
    turn = UserTurn.of(tokenizer, "tiny")
    assert [*turn.before, *tokenizer.encode("one two"), *turn.behind] == tokenizer.apply_chat([("user", "one two")])
    bare = PreTrainedTokenizerFast(tokenizer_object=byte_level_tokenizer(), eos_token="<eos>")
    bare.save_pretrained(tmp_path / "bare")
    with pytest.raises(InvalidField, match="--target: got 'bare', allowed: a model with a chat template"):
        UserTurn.of(load_tokenizer(tmp_path / "bare"), "bare")
