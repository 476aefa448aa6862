"""`paceline train corpus` on a tiny model, and what it refuses."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

import pytest
from tokenizers import processors

from paceline.errors import InvalidField
from paceline.runtime.tokenizer import load_tokenizer
from paceline.train.corpus import Corpus
from paceline.train.corpus_cli import add_corpus, run_corpus, usual_openings
from support.tiny import byte_level_tokenizer, save_tokenizer, tiny_model


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    folder = tiny_model(tmp_path / "tiny", vocab=400)
    return str(save_tokenizer(folder))


def arguments(*given: str) -> Namespace:
    parser = ArgumentParser()
    add_corpus(parser)
    return parser.parse_args(given)


def test_prompts_of_a_file_and_of_its_own(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "one two"}\n{"prompt": "the code"}\n')
    out = tmp_path / "corpus"
    given = ["--out", str(out), "--target", model, "--prompts", str(prompts), "--temperatures", "0,1", "--json"]
    given += ["--batch", "3", "--reply-tokens", "5", "--prompt-tokens", "4", "--rows", "7"]
    assert run_corpus(arguments(*given)) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["sequences"] == 4
    assert run_corpus(arguments(*given, "--sequences", "6")) == 0
    corpus = Corpus.open(out)
    assert len(corpus) == 6
    assert corpus.info.target == model
    assert {each.row_ids.shape[1] for each in corpus} == {7}
    assert max(len(each.row_ids) for each in corpus) <= 5


def test_openings_are_kept_in_mind(model: str, tmp_path: Path) -> None:
    openings = tmp_path / "openings.jsonl"
    openings.write_text('{"prompt": "one two"}\n')
    given = ["--out", str(tmp_path / "corpus"), "--target", model, "--sequences", "2", "--reply-tokens", "5"]
    given += ["--prompt-tokens", "4", "--rows", "7"]
    assert run_corpus(arguments(*given, "--openings", str(openings))) == 0
    tokenizer = load_tokenizer(Path(model))
    first = Corpus.open(tmp_path / "corpus")[0]
    assert "one two" in tokenizer.decode(first.tokens[: first.prompt_length].tolist())
    with pytest.raises(InvalidField, match="openings: got None"):
        run_corpus(arguments(*given, "--sequences", "3"))


def test_an_opening_stands_within_the_turn(model: str, tmp_path: Path) -> None:
    """What the tokenizer puts around a text, a beginning-of-sequence token above all, is not part of one."""
    tokenizer = byte_level_tokenizer()
    begin = tokenizer.token_to_id("<eos>")
    tokenizer.post_processor = processors.TemplateProcessing(single="<eos> $A", special_tokens=[("<eos>", begin)])
    save_tokenizer(Path(model), tokenizer)
    openings = tmp_path / "openings.jsonl"
    openings.write_text('{"prompt": "one two"}\n')
    given = ["--out", str(tmp_path / "corpus"), "--target", model, "--sequences", "1", "--reply-tokens", "5"]
    assert run_corpus(arguments(*given, "--prompt-tokens", "4", "--openings", str(openings))) == 0
    written = Corpus.open(tmp_path / "corpus")[0]
    assert begin not in written.tokens[: written.prompt_length]


def test_openings_that_no_prompt_begins_with_are_refused(model: str, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "one two"}\n')
    given = ["--out", str(tmp_path / "corpus"), "--target", model, "--prompts", str(prompts), "--openings", "usual"]
    with pytest.raises(InvalidField, match="--openings: got 'usual', allowed: absent"):
        run_corpus(arguments(*given))


def test_the_usual_openings_come_with_the_package() -> None:
    found = usual_openings()
    assert len({(each.category, each.text) for each in found}) == len(found) > 100
    categories = {each.category for each in found}
    assert categories == {each.category for each in found[:40]} == {each.category for each in found[-40:]}, "mixed"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--temperatures", "0,x"], "--temperatures: got '0,x'"),
        (["--temperatures", "-1"], "--temperatures: got -1.0, allowed: 0 to 5"),
        (["--batch", "0"], "--batch: got 0, allowed: 1 to 4096"),
        (["--rows", "401", "--reply-tokens", "9"], "--rows: got 401, allowed: 1 to "),
        (["--reply-tokens", "300"], "--reply-tokens: got 300, allowed: what fits behind the prompts"),
        (["--sequences", "0"], "--sequences: got 0"),
        (["--openings", "none.jsonl"], "--openings: got 'none.jsonl', allowed: a file of JSON lines"),
    ],
)
def test_bad_options_are_refused_by_name(model: str, tmp_path: Path, given: list[str], said: str) -> None:
    with pytest.raises(InvalidField) as caught:
        run_corpus(arguments("--out", str(tmp_path / "out"), "--target", model, *given))
    assert str(caught.value).startswith(said)
    assert not (tmp_path / "out").exists()
