"""`paceline train corpus`: the target writes text to learn from."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib.resources import as_file, files
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from paceline.errors import InvalidField
from paceline.prompt_file import Prompt, load_prompts, prompt_tokens
from paceline.runtime.known_models import DEFAULT_MODEL
from paceline.runtime.models import ModelSpec
from paceline.runtime.runner import ModelRunner
from paceline.runtime.store import default_store
from paceline.runtime.tokenizer import TextTokenizer, load_tokenizer
from paceline.runtime.transformers_runner import load_runner
from paceline.train.corpus import CorpusInfo
from paceline.train.making import make_corpus
from paceline.train.turns import UserTurn
from paceline.train.writing import Writer, WritingSettings

USUAL = "usual"  # the openings that come with the package
PAGE = 16  # tokens; what a sequence may leave unused of its last KV page
MOST_PROMPT_TOKENS = 1024  # of a given prompt; a longer one is cut at its end


def add_corpus(parser: argparse.ArgumentParser) -> None:
    """Adds its options."""
    parser.add_argument("--out", type=Path, required=True, help="folder of the corpus; one that is there goes on")
    parser.add_argument("--target", default=DEFAULT_MODEL, help=f"the model that writes (default {DEFAULT_MODEL})")
    parser.add_argument("--prompts", type=Path, help="JSON lines with prompt, answered at each temperature first")
    parser.add_argument(
        "--sequences", type=int, help="prompts with replies in all (default: those of --prompts, or 4096)"
    )
    parser.add_argument("--batch", type=int, default=64, help="sequences in a pass (default 64)")
    parser.add_argument("--temperatures", default="0,0.7,1", help="of replies, in turn (default 0,0.7,1)")
    parser.add_argument("--prompt-temperature", type=float, default=1.0, help="of prompts of its own (default 1)")
    parser.add_argument("--prompt-tokens", type=int, default=96, help="most of such a prompt (default 96)")
    parser.add_argument(
        "--openings",
        metavar="FILE",
        help=f"JSON lines with prompt: what such prompts begin with, in turn; {USUAL}: a list of common tasks",
    )
    parser.add_argument("--reply-tokens", type=int, default=192, help="most of a reply (default 192)")
    parser.add_argument("--rows", type=int, default=32, help="most probable tokens kept of each row (default 32)")
    parser.add_argument("--seed", type=int, default=0, help="default 0")
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line of stdout")


def run_corpus(args: argparse.Namespace) -> int:
    """Makes the corpus, or goes on with it."""
    settings = _settings(args)
    store = default_store()
    folder = store.resolve(args.target)
    tokenizer = load_tokenizer(folder)
    prompts = load_prompts(args.prompts) if args.prompts is not None else []
    answered = len(prompts) * len(settings.temperatures)
    sequences = args.sequences or answered or 4096
    turn = UserTurn.of(tokenizer, args.target) if sequences > answered else None
    if turn is None and args.openings is not None:
        remedy = f"Ask for more than {answered} --sequences."
        raise InvalidField("--openings", args.openings, "absent where each sequence answers one of --prompts", remedy)
    given = [prompt_tokens(tokenizer, prompt.text, MOST_PROMPT_TOKENS) for prompt in prompts]
    spec = ModelSpec(str(folder), name=args.target, dtype=args.dtype, device=args.device)
    openings = _openings(args.openings, tokenizer)
    longest = _longest(settings, turn, given, openings)
    kv_tokens = settings.batch * (longest + PAGE)
    runner = load_runner(spec, kv_tokens, vocab_size=tokenizer.vocab_size, measure_s=0)
    _check_room(settings, longest, runner)
    info = CorpusInfo(
        args.target,
        tokenizer.fingerprint,
        runner.info.vocab_size,
        settings.rows,
        {
            **asdict(settings),
            "temperatures": list(settings.temperatures),
            "given": _digest(given),
            **({"openings": _digest(openings)} if openings else {}),
            "dtype": runner.info.dtype,
        },
    )
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f} of {task.total:.0f} sequences, {task.fields[rate]:.0f} reply tokens/s"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    ) as progress:
        made = make_corpus(args.out, info, Writer(runner, turn, given, settings, openings), sequences, progress)
    summary = {
        "out": str(args.out),
        "sequences": made.info.sequences,
        "tokens": made.info.tokens,
        "reply_tokens": made.info.reply_tokens,
        "reply_tokens_per_s": made.tokens_per_s,
    }
    print(json.dumps(summary) if args.json else ", ".join(f"{key} {value}" for key, value in summary.items()))
    return 0


def _settings(args: argparse.Namespace) -> WritingSettings:
    try:
        temperatures = tuple(float(part) for part in args.temperatures.split(","))
    except ValueError as error:
        raise InvalidField("--temperatures", args.temperatures, "numbers from 0 to 5 with commas between") from error
    for field, value, low, high in (
        *(("--temperatures", each, 0, 5) for each in temperatures),
        ("--prompt-temperature", args.prompt_temperature, 0, 5),
        ("--sequences", 1 if args.sequences is None else args.sequences, 1, 10**9),
        ("--batch", args.batch, 1, 4096),
        ("--prompt-tokens", args.prompt_tokens, 1, 10**6),
        ("--reply-tokens", args.reply_tokens, 1, 10**6),
        ("--rows", args.rows, 1, 1024),
        ("--seed", args.seed, 0, 2**64 - 1),
    ):
        if not low <= value <= high:
            raise InvalidField(field, value, f"{low} to {high}")
    return WritingSettings(
        args.batch,
        temperatures,
        args.prompt_temperature,
        args.prompt_tokens,
        args.reply_tokens,
        args.rows,
        args.seed,
    )


def usual_openings() -> list[Prompt]:
    """The openings that come with the package: beginnings of common tasks, every category in any part of the list."""
    with as_file(files("paceline.train") / "openings.jsonl") as path:
        return load_prompts(path)


def _openings(named: str | None, tokenizer: TextTokenizer) -> list[list[int]]:
    """What prompts begin with, as tokens; nothing if no file is named."""
    if named is None:
        return []
    found = usual_openings() if named == USUAL else load_prompts(Path(named), option="--openings")
    around = set(tokenizer.encode(""))  # a beginning-of-sequence token, which has no place within a turn
    return [[token for token in tokenizer.encode(each.text) if token not in around] for each in found]


def _longest(
    settings: WritingSettings,
    turn: UserTurn | None,
    given: Sequence[Sequence[int]],
    openings: Sequence[Sequence[int]],
) -> int:
    """Tokens of the longest sequence there can be."""
    opening = max((len(each) for each in openings), default=0)
    own = 0 if turn is None else len(turn.before) + opening + settings.prompt_tokens + len(turn.behind)
    return max(own, *(len(prompt) for prompt in given), 0) + settings.reply_tokens


def _check_room(settings: WritingSettings, longest: int, runner: ModelRunner) -> None:
    limit = runner.info.context_length
    if longest > limit:
        remedy = f"A prompt and its reply would have {longest} tokens, the context limit is {limit}."
        raise InvalidField("--reply-tokens", settings.reply_tokens, "what fits behind the prompts", remedy)
    if settings.rows > runner.info.vocab_size:
        raise InvalidField("--rows", settings.rows, f"1 to {runner.info.vocab_size}, the size of the vocabulary")


def _digest(given: Sequence[Sequence[int]]) -> str:
    """Tells whether a run that goes on has the same prompts or openings."""
    return hashlib.sha256(json.dumps([list(prompt) for prompt in given]).encode()).hexdigest()[:16] if given else ""
