"""`paceline status`: what runs, and how it is doing."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from paceline_client.commands.connect import add_connection_options, connect
from paceline_client.commands.summary import counts
from paceline_client.service import DrafterState, MemberState, ModelInfo, Status, StrengthState, TargetState


def add_parser(subparsers: Any) -> None:
    """Adds the command."""
    parser = subparsers.add_parser("status", help="show what runs", description="Shows the model and the live state.")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    add_connection_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the state."""
    with connect(args) as client:
        info, status = client.get_model_info(), client.status()
    if args.json:
        print(json.dumps({"model": asdict(info), "status": asdict(status)}, ensure_ascii=False))
    else:
        print("\n".join(table(info, status)))
    return 0


def table(info: ModelInfo, status: Status) -> list[str]:
    """The state in lines of two columns."""
    sampling = f"temperature {info.temperature:g}, top-k {info.top_k}, top-p {info.top_p:g}"
    size = f"{info.vocab_size} tokens, context {info.context_length}"
    rows = [
        ("model", f"{info.model}, {info.dtype} on {info.device}, {size}"),
        ("defaults", f"{sampling}, budget {_budget(info)}{_modes(info)}"),
        ("gateway", f"version {info.version}, {status.gateway_requests} replies in flight"),
    ]
    for target in status.targets:
        rows += _target_rows(target)
    if not status.targets:
        rows.append(("target", "none"))
    for drafter in status.drafters:
        rows.append(("drafter", _drafter(drafter)))
        rows += [("", _member(member)) for member in drafter.members]
    if not status.drafters:
        rows.append(("drafter", "none linked; decoding plainly"))
    return [f"{name:<9} {text}" for name, text in rows]


def _target_rows(target: TargetState) -> list[tuple[str, str]]:
    link = f"{target.drafter_state} {target.drafter_address}".strip() or "absent"
    share = f" ({target.accepted / target.drafted:.0%})" if target.drafted else ""
    reasons = counts(target.fallbacks) or "none"
    rows = [
        (
            "target",
            f"{target.address}, {target.active_sessions} active, {target.queued_sessions} queued,"
            f" KV pages {target.kv_pages_used} of {target.kv_pages_total}",
        ),
        (
            "",
            f"{target.passes} passes, {target.emitted} tokens, {target.accepted} of {target.drafted} drafted"
            f" accepted{share}",
        ),
        ("", f"drafter link {link}, fallbacks: {reasons}"),
    ]
    if target.selections:
        rows.append(("", f"rounds by rule: {counts(target.selections)}"))
    if target.selection_reason:
        rows.append(("", f"auto: {' '.join(target.selection_reason.split())}"))
    if target.budgets:
        rows.append(("", f"rounds by budget: {counts(target.budgets)}"))
    if target.budget_reason:
        rows.append(("", f"auto budget: {' '.join(target.budget_reason.split())}"))
    kept = [
        (target.row_cache_hits, "rows from the cache"),
        (target.shared_prompt_tokens, "prompt tokens shared"),
        (target.relaxed, "tokens relaxed"),
    ]
    if any(n for n, _ in kept):
        rows.append(("", ", ".join(f"{n} {what}" for n, what in kept if n)))
    learned = [_strength(each) for each in target.strengths if each.in_force]
    if learned:
        rows.append(("", f"coupling strength in force: {', '.join(learned)}"))
    return rows


def _strength(state: StrengthState) -> str:
    warm = f"up to temperature {state.temperature_to:g}" if state.temperature_to else "above"
    return f"{state.proposer} {warm} {state.strength:g} ({state.accepted_per_round:.2f} accepted per drafted round)"


def _budget(info: ModelInfo) -> str:
    return f"auto, at most {info.max_budget}" if info.auto_budget else f"{info.budget} of at most {info.max_budget}"


def _modes(info: ModelInfo) -> str:
    """The default selection and wait, where the server names them, and whether it learns."""
    selection = f", selection {info.selection}" if info.selection else ""
    wait = f", wait {info.wait}" if info.wait else ""
    deadline = f" {info.draft_deadline_ms} ms" if wait and info.draft_deadline_ms else ""
    return f"{selection}{wait}{deadline}" + (", learns from replies" if info.learn else "")


def _member(member: MemberState) -> str:
    """A member of a fused proposer: how often its first token was right, and what it had promised, by level."""
    parts = [f"{member.proposer}: {member.sessions} sessions"]
    if member.passes:
        parts.append(f"{member.passes} passes")
    if member.left:
        parts.append(f"left: {counts(member.left)}")
    for warmth in dict.fromkeys(line.warmth for line in member.trust):
        lines = [line for line in member.trust if line.warmth == warmth]
        shares = " ".join(f"{line.right:.0%} ({line.promised:.0%})" for line in lines)
        parts.append(f"{warmth} right (promised) by level: {shares}")
    return ", ".join(parts)


def _drafter(drafter: DrafterState) -> str:
    return f"{drafter.address}, {drafter.proposer}, {drafter.sessions} sessions, {drafter.streams} streams"
