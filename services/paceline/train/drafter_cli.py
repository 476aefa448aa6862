"""`paceline train drafter` and `paceline train export`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from paceline.cli.stop_signal import StopSignal
from paceline.errors import InvalidField
from paceline.runtime.drafter_folder import FORMATS, read_facts
from paceline.runtime.store import default_store
from paceline.train.corpus import read_info
from paceline.train.drafter_run import RUN, train_drafter
from paceline.train.export import export_run
from paceline.train.metrics import TrainProgress
from paceline.train.settings import TrainSettings
from paceline.train.target_folder import TargetFolder

STOPPED = 130  # exit code after Ctrl-C
DEFAULT_EPOCHS = 2.0


def add_drafter(parser: argparse.ArgumentParser) -> None:
    """Adds its options."""
    defaults = TrainSettings(epochs=1)
    parser.add_argument(
        "--corpus", type=Path, nargs="+", required=True, help="folders that paceline train corpus has made"
    )
    parser.add_argument("--out", type=Path, required=True, help="the drafter's folder")
    parser.add_argument("--target", help="the model to draft for (default: the one that wrote the corpus)")
    parser.add_argument(
        "--start", type=Path, metavar="DRAFTER", help="begin with the weights, layers and head of this drafter's folder"
    )
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out, with the same options")
    parser.add_argument(
        "--layers", default="", metavar="N,N", help="layers of the target to begin with (default: first two, last two)"
    )
    parser.add_argument(
        "--vocab", default=str(defaults.vocab), metavar="N", help='tokens of its head, or "all" (default %(default)s)'
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--epochs", type=float, help=f"passes over the corpus (default {DEFAULT_EPOCHS:g})")
    length.add_argument("--minutes", type=float, help="train for so long instead")
    for name, what in (
        ("--batch-tokens", "tokens of a step, padding included"),
        ("--learning-rate", "at its highest"),
        ("--warm-up", "share of the run in which the learning rate rises"),
        ("--weight-decay", "of matrices"),
        ("--clip", "most that the norm of the gradient may be"),
        ("--temperature", "of the teacher's rows"),
        ("--argmax-weight", "share of the teacher's most probable token alone in what is learned, 0 to 1"),
        ("--validation", "share of sequences held out"),
        ("--checkpoint-minutes", "between checkpoints, each with a validation"),
        ("--seed", "of the order and of what is held out"),
    ):
        value = getattr(defaults, name.removeprefix("--").replace("-", "_"))
        parser.add_argument(name, type=type(value), default=value, metavar="N", help=f"{what} (default {value:g})")
    _add_weights(parser)
    parser.add_argument(
        "--dtype",
        default="auto",
        choices=["auto", "float32", "bfloat16"],
        help="of passes; auto is float32 on CPU and bfloat16 on GPU",
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line of stdout")


def run_drafter(args: argparse.Namespace) -> int:
    """Trains; 130 if it was stopped, with a checkpoint to go on from."""
    settings = _settings(args)
    name = args.target or read_info(args.corpus[0]).target
    with StopSignal() as signal, TrainProgress(args.out) as progress:
        target = TargetFolder.open(name, default_store().resolve(name))
        figures = train_drafter(
            args.corpus,
            target,
            args.out,
            settings,
            args.weights,
            progress,
            signal.asked.is_set,
            start=args.start,
            resume=args.resume,
        )
        if figures is None:
            progress.say(f"stopped; go on with the same command and --resume (checkpoint in {args.out})")
            return STOPPED
    shown = {"out": str(args.out), **figures}
    sys.stdout.write(f"{json.dumps(shown) if args.json else args.out}\n")
    return 0


def add_export(parser: argparse.ArgumentParser) -> None:
    """Adds its options."""
    parser.add_argument("--from", dest="source", type=Path, required=True, help="the --out of a run, ended or stopped")
    parser.add_argument("--out", type=Path, required=True, help="the drafter's folder")
    parser.add_argument("--target", help="where the run's target is now (default: where it was)")
    _add_weights(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line of stdout")


def run_export(args: argparse.Namespace) -> int:
    """Writes the drafter of a run's last checkpoint."""
    run = args.source / RUN
    if not run.is_dir():
        raise InvalidField("--from", str(args.source), f"the folder of a run, which has a folder {RUN}")
    name = args.target or read_facts(run, str(args.source)).target
    figures = export_run(run, args.out, args.weights, TargetFolder.open(name, default_store().resolve(name)))
    shown = {"out": str(args.out), **figures}
    sys.stdout.write(f"{json.dumps(shown) if args.json else args.out}\n")
    return 0


def _add_weights(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--weights",
        default="float32",
        choices=FORMATS,
        help="number format of the folder's weights (default float32; int8 only with a trimmed head)",
    )


def _settings(args: argparse.Namespace) -> TrainSettings:
    return TrainSettings(
        layers=_layers(args.layers),
        vocab=_vocab(args.vocab),
        epochs=DEFAULT_EPOCHS if args.epochs is None and args.minutes is None else args.epochs,
        minutes=args.minutes,
        batch_tokens=args.batch_tokens,
        learning_rate=args.learning_rate,
        warm_up=args.warm_up,
        weight_decay=args.weight_decay,
        clip=args.clip,
        temperature=args.temperature,
        argmax_weight=args.argmax_weight,
        validation=args.validation,
        checkpoint_minutes=args.checkpoint_minutes,
        dtype=args.dtype,
        device=args.device,
        seed=args.seed,
    )


def _layers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part)
    except ValueError:
        raise InvalidField("--layers", text, "numbers with commas between, for example 0,1,28,29") from None


def _vocab(text: str) -> int | None:
    if text == "all":
        return None
    try:
        return int(text)
    except ValueError:
        raise InvalidField("--vocab", text, 'a number of tokens, or "all"') from None
