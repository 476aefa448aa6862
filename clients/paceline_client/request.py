"""A request as people write it, and its wire form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

from paceline.v1 import common_pb2, inference_pb2
from paceline_client.errors import InvalidRequest
from paceline_client.modes import MODES, Proposal, Selection, Wait
from paceline_client.nucleus import Nucleus


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: str  # "system", "user" or "assistant"
    content: str


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation, formatted by the server with the model's chat template."""

    messages: Sequence[Message]

    @staticmethod
    def user(content: str, system: str | None = None) -> Chat:
        """A conversation of one question."""
        first = () if system is None else (Message("system", system),)
        return Chat((*first, Message("user", content)))


@dataclass(frozen=True, slots=True)
class Tokens:
    """A prompt that is already tokenised."""

    token_ids: Sequence[int]


Prompt = str | Chat | Tokens  # a plain string is tokenised as it is, without a chat template


class GenerateFields(TypedDict, total=False):
    """Keyword arguments of `generate`. An absent one takes the server's default, which `get_model_info` reports."""

    n: int | None  # replies, 1 to the server's limit; not with `complete`, which gives one
    max_tokens: int | None  # of each reply, 1 to the context length; absent: up to the context limit
    temperature: float | None  # 0 (greedy) to 1e6
    top_k: int | None  # 0 keeps all
    top_p: float | None  # 0 (the argmax) to 1 (all)
    seed: int | None  # 0 to 2**64 - 1, of all replies; absent: the server draws one and reports it in Finish
    stop: Sequence[str]  # strings that end the reply, which ends right before them
    ignore_eos: bool | None
    draft: bool | None  # False decodes plainly
    budget: int | Literal["auto"] | None  # draft nodes per round; "auto": the server chooses them every round
    proposal: Proposal | None  # "sampled" keeps the law of the reply, not its tokens
    strength: float | None  # coupling strength, 0.1 to 1e6; coupled proposals only
    selection: Selection | None  # which of the target's rows shape the next tree
    wait: Wait | None  # how long the target waits for a tree
    draft_deadline_ms: int | None  # milliseconds to wait for a tree, 1 to 60000; wait="deadline" only
    learn: bool | None  # False: no drafter learns from the reply
    nucleus: Nucleus | None  # None: exact verification
    trace: bool | None  # True: every Delta brings its rounds
    model: str  # refused if another one is served


AUTO_BUDGET: Literal["auto"] = "auto"
_SAMPLING = frozenset(("temperature", "top_k", "top_p", "seed"))
_SPECULATION = frozenset(("draft", "strength", "learn"))
_PLAIN = frozenset(("n", "max_tokens", "ignore_eos", "model", "trace"))
_NUCLEUS = {
    "mass": "0 (the exact rule) to 1",
    "temperature": "0.01 to 1e6",
    "max_deviation": "0 or more",
    "max_deviation_per_token": "0 or more",
    "max_relaxations": f"a whole number, 0 to {2**32 - 1}",
}


def request_of(prompt: Prompt, fields: GenerateFields) -> inference_pb2.GenerateRequest:
    """The wire form. Raises InvalidRequest for what the wire cannot carry; ranges are the server's to check."""
    request = inference_pb2.GenerateRequest()
    _set_prompt(request, prompt)
    for name, value in fields.items():
        if value is None:
            continue
        if name == "stop":
            _set_stops(request, value)
        elif name in MODES:
            _set_mode(request.speculation, name, value)
        elif name == "draft_deadline_ms":
            _set_ranged(request.speculation, "deadline_ms", value, name, "a whole number, 1 to 60000")
        elif name == "nucleus":
            _set_nucleus(request.speculation.nucleus, value)
        elif name == "budget":
            _set_budget(request.speculation, value)
        elif name in _SAMPLING:
            _set(request.sampling, name, value)
        elif name in _SPECULATION:
            _set(request.speculation, name, value)
        elif name in _PLAIN:
            _set(request, name, value)
        else:
            known = ", ".join(sorted(GenerateFields.__annotations__))
            raise InvalidRequest(f"{name}: no such field; known: {known}")
    return request


def _set_prompt(request: inference_pb2.GenerateRequest, prompt: object) -> None:
    if isinstance(prompt, str):
        _set(request, "text", prompt)
    elif isinstance(prompt, Chat):
        request.chat.SetInParent()
        for number, message in enumerate(prompt.messages):
            turn = request.chat.messages.add()
            _set(turn, "role", message.role, f"messages[{number}].role")
            _set(turn, "content", message.content, f"messages[{number}].content")
    elif isinstance(prompt, Tokens):
        request.tokens.SetInParent()
        try:
            request.tokens.token_ids.extend(prompt.token_ids)
        except (ValueError, TypeError) as error:
            raise InvalidRequest(f"token_ids: {error}") from None
    else:
        raise InvalidRequest(f"prompt: got {type(prompt).__name__}, allowed: str, Chat, Tokens")


def _set_stops(request: inference_pb2.GenerateRequest, stops: object) -> None:
    if isinstance(stops, str) or not isinstance(stops, Sequence):
        raise InvalidRequest(f"stop: got {stops!r:.80}, allowed: a list of strings")
    for number, stop in enumerate(stops):
        try:
            request.stop.append(stop)
        except (ValueError, TypeError) as error:
            raise InvalidRequest(f"stop[{number}]: {_reason(error)}") from None


def _set_mode(params: common_pb2.SpeculationParams, name: str, value: object) -> None:
    known = MODES[name]
    if not isinstance(value, str) or value not in known:
        raise InvalidRequest(f"{name}: got {value!r:.80}, allowed: {', '.join(known)}")
    setattr(params, name, known[value])


def _set_budget(params: common_pb2.SpeculationParams, budget: object) -> None:
    if budget == AUTO_BUDGET:
        params.auto_budget = True
    else:
        _set_ranged(params, "budget", budget, "budget", f"{AUTO_BUDGET}, or a whole number, 0 to the server's limit")


def _set_nucleus(message: common_pb2.NucleusVerification, nucleus: object) -> None:
    if not isinstance(nucleus, Nucleus):
        raise InvalidRequest(f"nucleus: got {nucleus!r:.80}, allowed: a Nucleus, or None for exact verification")
    if nucleus.mass is None:
        raise InvalidRequest(f"nucleus.mass: got None, allowed: {_NUCLEUS['mass']}")
    for name, allowed in _NUCLEUS.items():
        if (value := getattr(nucleus, name)) is not None:
            _set_ranged(message, name, value, f"nucleus.{name}", allowed)


def _set_ranged(message: object, name: str, value: object, shown: str, allowed: str) -> None:
    try:
        setattr(message, name, value)
    except (ValueError, TypeError):
        raise InvalidRequest(f"{shown}: got {value!r:.80}, allowed: {allowed}") from None


def _set(message: object, name: str, value: object, shown: str = "") -> None:
    try:
        setattr(message, name, value)
    except (ValueError, TypeError) as error:
        raise InvalidRequest(f"{shown or name}: got {value!r:.80}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeEncodeError):
        return f"not valid Unicode at position {error.start} (a lone surrogate); send valid text"
    return str(error)
