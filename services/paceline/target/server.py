"""A target replica: model, engine, drafter link and listener, with one life."""

from __future__ import annotations

import asyncio
import functools
import logging
import uuid
from collections.abc import Callable

from paceline.errors import Unavailable
from paceline.rpc.channels import open_channel
from paceline.rpc.server import DataPlaneServer
from paceline.runtime.passing_thread import in_passing_thread
from paceline.runtime.reply_text import ReplyText
from paceline.runtime.runner import ModelRunner
from paceline.runtime.tokenizer import TextTokenizer
from paceline.speculation.modes import Selection, WaitFor
from paceline.target.config import AUTO, TargetConfig
from paceline.target.decode_request import RequestLimits
from paceline.target.directory import DrafterDirectory
from paceline.target.engine import TargetEngine
from paceline.target.events import EngineEvent
from paceline.target.frames import FrameCodec
from paceline.target.inbox import Inbox
from paceline.target.link import DrafterLink, LinkTiming
from paceline.target.loading import load
from paceline.target.outbox import LoopOutbox
from paceline.target.record import RoundObserver
from paceline.target.request import CANDIDATES
from paceline.target.round import SelectionRule
from paceline.target.servicer import TargetServicer
from paceline.target.status import Identity, StatusReport
from paceline.v1 import target_pb2, target_pb2_grpc

log = logging.getLogger(__name__)

SERVICE = target_pb2.DESCRIPTOR.services_by_name["TargetService"].full_name
WATCH_S = 0.5  # between looks at the engine for grpc.health.v1
STOP_PASS_S = 30.0  # how long a running pass may take at the end before its thread is left behind


class TargetServer:
    """Starts and stops everything a target is. Belongs to the event loop that starts it."""

    def __init__(
        self,
        config: TargetConfig,
        directory: DrafterDirectory | None,
        runner: ModelRunner | None = None,
        tokenizer: TextTokenizer | None = None,
        observer: RoundObserver | None = None,
        rule: Callable[[ModelRunner], SelectionRule] | None = None,
    ) -> None:
        """Takes the parts.

        Args:
            config: limits and times.
            directory: names drafters; None decodes plainly.
            runner: the model; None loads the configured one.
            tokenizer: its tokenizer; None loads it too.
            observer: called with a record of every round.
            rule: makes the order of the steps of a round; None: the four rules as requests ask for them.
        """
        self.incarnation = uuid.uuid4().hex
        self._config, self._directory, self._observer, self._rule = config, directory, observer, rule
        self._runner, self._tokenizer = runner, tokenizer
        self._engine: TargetEngine | None = None
        self._listener: DataPlaneServer | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def engine(self) -> TargetEngine:
        """The engine. Raises Unavailable before `start` is through."""
        if self._engine is None:
            raise Unavailable("the target has not started")
        return self._engine

    def healthy(self) -> None:
        """Raises Unavailable unless the replica serves. Never blocks."""
        self.engine.healthy()
        if self._listener is None:
            raise Unavailable("the target does not listen")

    async def start(self) -> str:
        """Loads what was not given, in a thread, and listens; returns the address.

        Raises an error of paceline.errors if the model cannot be served or the port is taken; nothing is left running.
        """
        try:
            return await self._start()
        except BaseException:
            await self.stop(0.0)
            raise

    async def _start(self) -> str:
        config, loop = self._config, asyncio.get_running_loop()
        if self._runner is None or self._tokenizer is None:
            loaded = await in_passing_thread(load, config)
            self._runner, self._tokenizer = self._runner or loaded.runner, self._tokenizer or loaded.tokenizer
        runner, tokenizer = self._runner, self._tokenizer
        inbox: Inbox[EngineEvent] = Inbox()
        outbox = LoopOutbox(loop)
        link = self._make_link(runner, tokenizer, inbox, outbox)
        eos = runner.info.eos_token_ids | tokenizer.eos_token_ids
        engine = TargetEngine(
            runner,
            config,
            outbox=outbox,
            eos_token_ids=eos,
            stop_text=functools.partial(ReplyText, tokenizer),
            inbox=inbox,
            port=link,
            rule=None if self._rule is None else self._rule(runner),
            observer=self._observer,
        )
        engine.start()
        self._engine = engine
        report = StatusReport(self._identity(runner, tokenizer, engine, eos), engine, link)
        servicer = TargetServicer(
            engine,
            _limits(runner, engine, config),
            report,
            outbox=outbox,
            max_unread_tokens=config.max_unread_tokens,
        )
        self._listener = DataPlaneServer(
            [SERVICE],
            functools.partial(target_pb2_grpc.add_TargetServiceServicer_to_server, servicer),
            host=config.bind_host,
            port=config.port,
            tls=config.tls,
        )
        report.address = await self._listener.start()
        self._tasks.append(asyncio.create_task(self._watch(self._listener), name="paceline-target-health"))
        if link is not None:
            self._tasks.append(asyncio.create_task(link.run(), name="paceline-target-link"))
        return report.address

    async def stop(self, grace_s: float) -> None:
        """Takes no new sessions, gives running ones `grace_s` seconds, then ends them with Unavailable."""
        for task in self._tasks[:1]:  # the watch would report SERVING again
            task.cancel()
        if self._listener is not None:
            await self._listener.stop(grace_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        if self._engine is not None and not await asyncio.to_thread(self._engine.stop, timeout_s=STOP_PASS_S):
            log.error("a pass still runs after %.0f s; its thread is left behind", STOP_PASS_S)
        self._listener = None

    async def _watch(self, listener: DataPlaneServer) -> None:
        """Keeps grpc.health.v1 in step with the engine: one that is lost or stalled is NOT_SERVING."""
        serving = True
        while True:
            await asyncio.sleep(WATCH_S)
            try:
                self.engine.healthy()
                now = True
            except Unavailable as error:
                now = False
                if serving:
                    log.error("not serving: %s", error)
            if now != serving:
                serving = now
                await listener.set_serving(serving)

    def _make_link(
        self, runner: ModelRunner, tokenizer: TextTokenizer, inbox: Inbox[EngineEvent], outbox: LoopOutbox
    ) -> DrafterLink | None:
        if self._directory is None:
            return None
        config = self._config
        codec = FrameCodec(
            tokenizer_fingerprint=tokenizer.fingerprint,
            vocab_size=runner.info.vocab_size,
            max_nodes=CANDIDATES * config.max_budget,
            max_depth=CANDIDATES * config.max_budget,
        )
        timing = LinkTiming(config.connect_timeout_s, config.backoff_first_ms / 1e3, config.backoff_max_ms / 1e3)
        return DrafterLink(
            self._directory,
            codec,
            timing,
            events=inbox.post,
            outbox=outbox,
            open_channel=functools.partial(open_channel, tls=config.tls),
        )

    def _identity(
        self, runner: ModelRunner, tokenizer: TextTokenizer, engine: TargetEngine, eos: frozenset[int]
    ) -> Identity:
        return Identity(
            model=runner.info.name,
            vocab_size=runner.info.vocab_size,
            context_length=engine.context_length,
            eos_token_ids=tuple(sorted(eos)),
            dtype=runner.info.dtype,
            device=runner.info.device,
            tokenizer_fingerprint=tokenizer.fingerprint,
            has_chat_template=tokenizer.has_chat_template,
            default_budget=self._config.max_budget if self._config.budget == AUTO else self._config.budget,
            default_auto_budget=self._config.budget == AUTO,
            max_budget=self._config.max_budget,
            default_selection=Selection(self._config.selection),
            default_wait=WaitFor(self._config.wait),
            default_deadline_ms=max(1, round(self._config.draft_deadline_ms)),
            default_learn=self._config.learn,
            incarnation=self.incarnation,
        )


def _limits(runner: ModelRunner, engine: TargetEngine, config: TargetConfig) -> RequestLimits:
    info = runner.info
    by_model = engine.context_length == info.context_length
    reason = info.context_reason if by_model else "set by this server's kv_tokens and context_length"
    return RequestLimits(info.vocab_size, engine.context_length, reason, config.max_budget, config.learn)
