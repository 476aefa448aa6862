"""InferenceService as plain async generators and coroutines, whatever carries them: Ray Serve or a listener of ours.

A call's work ends when its generator is closed.
"""

from __future__ import annotations

import logging
import secrets
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING

from paceline.errors import DeadlineExceeded, PacelineError
from paceline.gateway.admission import Admission
from paceline.gateway.config import GatewayConfig
from paceline.gateway.deadline import Deadline
from paceline.gateway.directory import TargetDirectory
from paceline.gateway.merge import merged
from paceline.gateway.prompt import PromptReader
from paceline.gateway.relay import Relay
from paceline.gateway.reply import Reply
from paceline.gateway.requests import Resolved, check_model, check_shape, choices, resolve
from paceline.gateway.targets import Targets
from paceline.gateway.token_texts import TokenTexts
from paceline.rpc.status import status_of
from paceline.v1 import inference_pb2, target_pb2

if TYPE_CHECKING:
    from paceline.runtime.tokenizer import TextTokenizer

access = logging.getLogger("paceline.gateway.access")


def random_seed() -> int:
    """A seed that nobody can guess, 0 to 2**64 - 1."""
    return secrets.randbits(64)


class InferenceServicer:
    """Serves clients with the tokens of leased targets. Belongs to the event loop that makes the first call."""

    def __init__(
        self,
        directory: TargetDirectory,
        tokenizer: TextTokenizer,
        config: GatewayConfig,
        *,
        draw_seed: Callable[[], int] = random_seed,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`draw_seed` gives the seed of requests without one, 0 to 2**64 - 1."""
        self._config, self._tokenizer = config, tokenizer
        self._draw_seed, self._clock = draw_seed, clock
        self._targets = Targets(directory, config, tokenizer.fingerprint)
        self._prompts = PromptReader(tokenizer, config)
        self._texts = TokenTexts(tokenizer)
        self._admission = Admission(config.max_requests)

    @property
    def requests(self) -> int:
        """Replies in flight; a call for n counts n."""
        return self._admission.in_flight

    async def close(self) -> None:
        """Ends what still runs and lets go of the targets."""
        await self._targets.close()
        self._prompts.close()

    async def generate(
        self, request: inference_pb2.GenerateRequest, *, request_id: str = "", time_left_s: float | None = None
    ) -> AsyncGenerator[inference_pb2.GenerateResponse, None]:
        """Deltas, then one Finish; of several replies as they come, each message with its reply's index.

        `time_left_s` is what the transport knows of the call's deadline; the earlier of it and `deadline_ms` counts.
        Raises a PacelineError by kind; that of one reply ends all.
        """
        started = self._clock()
        name = request_id or uuid.uuid4().hex
        tokens, outcome = 0, "CANCELLED"
        try:
            check_shape(request, self._config)
            with self._admission.enter(choices(request)):
                async with aclosing(self._replies(request, name, time_left_s, started)) as messages:
                    async for message in messages:
                        tokens += len(message.delta.token_ids)
                        yield message
            outcome = "OK"
        except Exception as error:
            outcome = status_of(error)[0].name if isinstance(error, PacelineError) else "INTERNAL"
            raise
        finally:
            access.info("Generate %s %s tokens=%d s=%.3f", name, outcome, tokens, self._clock() - started)

    async def get_model_info(
        self, request: inference_pb2.GetModelInfoRequest, *, time_left_s: float | None = None
    ) -> inference_pb2.GetModelInfoResponse:
        """The served model as a target describes it now."""
        info = inference_pb2.GetModelInfoResponse()
        info.CopyFrom(await self._targets.describe(Deadline(time_left_s, self._clock)))
        info.has_chat_template = self._tokenizer.has_chat_template
        info.max_choices, _ = self._config.choices_limit
        return info

    async def get_status(
        self, request: inference_pb2.GetStatusRequest, *, time_left_s: float | None = None
    ) -> inference_pb2.GetStatusResponse:
        """Live state: this gateway's, and that of the targets it uses and their drafters."""
        answers = await self._targets.statuses(Deadline(time_left_s, self._clock))
        drafters = {
            (drafter.address, drafter.incarnation): drafter for answer in answers for drafter in answer.drafters
        }
        return inference_pb2.GetStatusResponse(
            gateway_requests=self.requests,
            targets=[answer.target for answer in answers],
            drafters=drafters.values(),
        )

    async def _replies(
        self, request: inference_pb2.GenerateRequest, name: str, time_left_s: float | None, started: float
    ) -> AsyncGenerator[inference_pb2.GenerateResponse, None]:
        asked_s = request.deadline_ms / 1e3 if request.HasField("deadline_ms") else None
        deadline = Deadline.earliest(asked_s, time_left_s, clock=self._clock)
        deadline.left_s()
        async with self._targets.lease(deadline) as target:  # the same for all: it reads their prompt once
            resolved = await self._resolve(request, target.model, deadline)
            streams = []
            for index in range(resolved.choices):
                reply = Reply(resolved, index, self._tokenizer, started, self._clock)
                named = name if resolved.choices == 1 else f"{name}/{index}"
                relay = Relay(self._targets, self._config, resolved, deadline, named)
                streams.append(self._reply(relay.run(target, reply), reply))
            async with aclosing(merged(streams)) as messages:
                async for message in messages:
                    yield message

    async def _reply(
        self, relayed: AsyncGenerator[inference_pb2.Delta | target_pb2.TargetFinish, None], reply: Reply
    ) -> AsyncGenerator[inference_pb2.GenerateResponse, None]:
        async with aclosing(relayed) as events:
            async for event in events:
                if isinstance(event, inference_pb2.Delta):
                    if event.token_ids or event.text:
                        self._texts.fill(event.rounds)
                        yield inference_pb2.GenerateResponse(delta=event)
                    continue
                rest, finish = reply.finish(event)
                if rest.text:
                    yield inference_pb2.GenerateResponse(delta=rest)
                yield inference_pb2.GenerateResponse(finish=finish)

    async def _resolve(
        self,
        request: inference_pb2.GenerateRequest,
        model: inference_pb2.GetModelInfoResponse,
        deadline: Deadline,
    ) -> Resolved:
        check_model(request, model)
        try:
            prompt = await self._prompts.tokens(request, model.vocab_size, model.context_length, deadline.left_s())
        except TimeoutError:
            raise DeadlineExceeded("the request's deadline passed while its prompt was tokenised") from None
        return resolve(request, prompt, model, self._draw_seed)
