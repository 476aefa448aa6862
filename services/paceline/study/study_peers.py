"""`paceline study peers`: our decoding beside that of transformers and llama.cpp, same prompts, same run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from paceline.drafter.config import DrafterConfig
from paceline.figures import Bar, draw_bars
from paceline.prompt_file import Prompt, prompt_tokens
from paceline.runtime.models import ModelSpec
from paceline.runtime.store import default_store, home_folder
from paceline.runtime.tokenizer import load_tokenizer
from paceline.runtime.transformers_runner import load_runner
from paceline.study.bare import BareModel
from paceline.study.equality import Judge
from paceline.study.formats import LOW_BIT
from paceline.study.loaded import check_reply
from paceline.study.parts import Parts
from paceline.study.peers import System, decode_all, turn_keys
from paceline.study.peers_equal import RunnerRows, compared
from paceline.study.peers_llama import llama_peer
from paceline.study.peers_own import DRAFTED, PLAIN, OwnSettings, own_stacks
from paceline.study.peers_report import BASES, Outcome, judged, ratios, rows
from paceline.study.peers_transformers import transformers_systems
from paceline.study.report import Report, finite, timed_on
from paceline.study.truncated import truncated_model
from paceline.study.turns import runs_note, tell_kept

JUDGE_KV_TOKENS = 20480


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """What to compare."""

    model: str
    prompts: Sequence[Prompt]
    dtypes: Sequence[str]  # of our own decoding, float32 first
    drafter: DrafterConfig
    drafter_name: str
    new_tokens: int = 64
    prompt_tokens: int = 560
    repeats: int = 2
    at_once: int = 8
    batches: int = 4  # of sessions at once
    threads: int = 2  # of every system
    drafter_threads: int = 1
    assistant_layers: Sequence[int] = ()  # of the target, that make the assistant of transformers; empty: none
    llama: bool = True  # whether llama.cpp is asked, if it is there


async def study_peers(settings: PeerSettings, out: Path | None, progress: Callable[[str], None]) -> Report:
    """All systems are loaded first, and then decode in turns; those of an earlier run into `out` are not decoded again.

    Raises RuntimeError if our own float32 stack does not start.
    """
    torch.set_num_threads(settings.threads)
    folder = default_store().resolve(settings.model)
    tokenizer = load_tokenizer(folder)
    prompts = [prompt_tokens(tokenizer, prompt.text, settings.prompt_tokens) for prompt in settings.prompts]
    check_reply("--tokens", settings.new_tokens, settings.model, folder, prompts)
    device = str(ModelSpec(str(folder)).resolved_device())
    own = OwnSettings(
        str(folder),
        settings.drafter,
        settings.new_tokens,
        settings.threads,
        settings.drafter_threads,
        settings.at_once,
    )
    async with AsyncExitStack() as stack:
        stacks, skipped = await stack.enter_async_context(own_stacks(own, settings.dtypes, progress))
        systems = [system for each in stacks for system in each.systems()]
        progress("loading transformers' models")
        assistant = None
        if settings.assistant_layers:
            assistant = truncated_model(folder, settings.assistant_layers, home_folder(os.environ) / "truncated")
        else:
            skipped.append("transformers assisted is skipped: no --assistant-layers for this model")
        formats = [each.dtype for each in stacks if each.dtype not in LOW_BIT]
        bare = {dtype: BareModel(folder, dtype, device) for dtype in formats}
        systems += transformers_systems(bare, assistant, device, settings.new_tokens)
        if settings.llama:
            context = max(map(len, prompts)) + settings.new_tokens + 1
            llama = stack.enter_context(
                llama_peer(settings.model, settings.threads, context, settings.new_tokens, progress)
            )
            systems += llama.systems
            skipped += llama.skipped
        parts = Parts(out, "peers", _depends(settings, systems, prompts))
        keys = turn_keys(len(prompts), settings.repeats)
        keys += [key for each in stacks for key in each.together_keys(settings.batches)]
        tell_kept("peers", parts, keys)
        times = await decode_all(systems, prompts, settings.repeats, parts, progress)
        together = [row for each in stacks for row in await each.together(prompts, settings.batches, parts, progress)]
    runs = parts.runs(keys)
    progress("comparing tokens")
    judges = _Judges(folder, bare, tokenizer.vocab_size)
    outcomes = []
    for system in systems:
        judge, reference = judges.of(system)
        equal = compared(
            times[system.key].first, times[reference].first, prompts, frozenset(tokenizer.eos_token_ids), judge
        )
        outcomes.append(Outcome(system, times[system.key], equal))
    found_ratios = ratios(outcomes)
    table = rows(outcomes, found_ratios)
    bars = judged(outcomes, found_ratios, together)
    if out is not None:
        draw_bars(
            [Bar(f"{row['system']}, {row['dtype']}", row["tokens_per_s"], row["low"], row["high"]) for row in table],
            "tokens a second, one request at a time",
            out,
            "peers",
        )
    return Report(
        "peers",
        {
            "model": settings.model,
            "dtypes": [each.dtype for each in stacks],
            "drafter": settings.drafter_name,
            "prompts": len(prompts),
            "new_tokens": settings.new_tokens,
            "repeats": settings.repeats,
            "threads": settings.threads,
            "drafter_threads": settings.drafter_threads,
            "device": device,
        },
        [finite(row) for row in table],
        notes=[
            f"threads of every system: {settings.threads}; our drafter has {settings.drafter_threads} of its own",
            "greedy, one request at a time, the same prompt tokens; times are of decoding, once the prompt is read",
            "low and high bound tokens_per_s for other prompts like these, with 95 %",
            "equal_to_own_plain: replies with the tokens of our plain decoding, in the same format for ours and in"
            " float32 for the others; near_ties: of the rest, those whose first difference is a near-tie",
            *(_ratio_note(each) for each in found_ratios if each["system"] in (PLAIN, DRAFTED)),
            *(_together_note(each) for each in together),
            *runs_note(runs),
            *skipped,
            *(note for note, _ in bars),
        ],
        passed=all(met for _, met in bars),
        extra={"ratios": found_ratios, "at_once": together, "skipped": skipped, "runs": runs},
    )


def _depends(
    settings: PeerSettings, systems: Sequence[System], prompts: Sequence[Sequence[int]]
) -> Mapping[str, object]:
    """What a turn depends on. More repeats or batches go on from fewer ones."""
    return {
        "model": settings.model,
        "systems": [system.key for system in systems],
        "drafter": settings.drafter.model_dump(),
        "new_tokens": settings.new_tokens,
        "at_once": settings.at_once,
        "threads": settings.threads,
        "drafter_threads": settings.drafter_threads,
        "assistant_layers": list(settings.assistant_layers),
        "prompts": prompts,
        "machine": timed_on(),
    }


class _Judges:
    """What a system's replies are compared with, and by whose rows a near-tie is told."""

    def __init__(self, folder: Path, bare: Mapping[str, BareModel], vocab_size: int) -> None:
        self._folder, self._bare, self._vocab_size = folder, bare, vocab_size
        self._low_bit: dict[str, Judge] = {}

    def of(self, system: System) -> tuple[Judge | None, str]:
        """The judge, None where the system's rows are not to be had, and the key of the reference."""
        ours = system.name in (PLAIN, DRAFTED)
        reference = f"{PLAIN}, {system.dtype if ours else 'float32'}"
        if system.dtype in self._bare:
            exact = None if system.dtype == "float32" else self._bare["float32"]
            return Judge(self._bare[system.dtype], exact), reference
        if not ours:
            return None, reference
        if system.dtype not in self._low_bit:
            spec = ModelSpec(str(self._folder), dtype=system.dtype)
            runner = load_runner(spec, JUDGE_KV_TOKENS, vocab_size=self._vocab_size)
            self._low_bit[system.dtype] = Judge(RunnerRows(runner))
        return self._low_bit[system.dtype], reference


def _ratio_note(each: Mapping[str, Any]) -> str:
    others = ""
    if each["low_prompts"] is not None:
        others = f"; other prompts {each['low_prompts']:.2f} to {each['high_prompts']:.2f}"
    return (
        f"{each['system']}, {each['dtype']}, over {BASES[each['over']]}: {each['ratio']:.2f}"
        f" ({each['low']:.2f} to {each['high']:.2f}{others})"
    )


def _together_note(each: Mapping[str, Any]) -> str:
    return (
        f"{each['system']}, {each['dtype']}, {each['sessions']} sessions at once: {each['ratio']:.2f}"
        f" ({each['low']:.2f} to {each['high']:.2f}) times the tokens a second of one plain session"
    )
