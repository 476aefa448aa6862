"""A drafter replica's server: proposer, engine and listener together."""

from __future__ import annotations

import asyncio
import functools
import secrets

from paceline.drafter.config import DrafterConfig
from paceline.drafter.engine import DrafterEngine
from paceline.drafter.loading import KeptStore, load_proposer, load_store
from paceline.drafter.proposer import Proposer
from paceline.drafter.servicer import DraftServicer
from paceline.drafter.text_store import TextStore
from paceline.errors import Unavailable
from paceline.rpc.server import DataPlaneServer
from paceline.runtime.passing_thread import in_passing_thread
from paceline.runtime.tokenizer import load_tokenizer
from paceline.v1 import draft_pb2, draft_pb2_grpc


class DrafterServer:
    """Serves DraftService on its own address."""

    def __init__(self, config: DrafterConfig, proposer: Proposer | None = None) -> None:
        """`proposer` None builds the one that `config` names."""
        self._config = config
        self._proposer = proposer
        self._engine: DrafterEngine | None = None
        self._servicer: DraftServicer | None = None
        self._listener: DataPlaneServer | None = None
        self._kept: KeptStore | None = None
        self._saving: asyncio.Task[None] | None = None
        self.incarnation = secrets.token_hex(8)

    @property
    def store(self) -> TextStore:
        """What the replica remembers of served text. Raises Unavailable before the start."""
        if self._kept is None:
            raise Unavailable("the drafter has not started")
        return self._kept.store

    @property
    def sessions(self) -> int:
        """Open sessions."""
        return 0 if self._engine is None else self._engine.sessions

    @property
    def streams(self) -> int:
        """Open streams."""
        return 0 if self._servicer is None else self._servicer.streams

    async def start(self) -> str:
        """Loads proposer and store, in a thread, and listens. Returns the address.

        What a store's file holds is indexed afterwards, while nobody waits for a tree.
        """
        tokenizer_of = functools.cache(load_tokenizer)  # store and model need the target's: some MB, for the start only
        kept = await in_passing_thread(load_store, self._config, tokenizer_of)
        proposer = self._proposer
        if proposer is None:
            proposer = await in_passing_thread(load_proposer, self._config, kept, tokenizer_of)
        engine = DrafterEngine(
            proposer, self._config.max_sessions, self._config.max_budget, upkeep=kept.store.learn_part
        )
        servicer = DraftServicer(engine, proposer, self.incarnation)
        listener = DataPlaneServer(
            [draft_pb2.DESCRIPTOR.services_by_name["DraftService"].full_name],
            lambda server: draft_pb2_grpc.add_DraftServiceServicer_to_server(servicer, server),
            host=self._config.bind_host,
            port=self._config.port,
            tls=self._config.tls,
        )
        servicer.address = await listener.start()
        engine.start()
        self._engine, self._servicer, self._listener = engine, servicer, listener
        self._kept = kept
        if kept.keeper is not None:
            self._saving = asyncio.create_task(kept.keeper.run())
        return servicer.address

    async def stop(self, grace_s: float) -> None:
        """Ends the streams, so that targets look elsewhere, and the listener, in `grace_s` seconds; saves the store."""
        if self._servicer is not None:
            self._servicer.drain()
        if self._listener is not None:
            await self._listener.stop(grace_s)
        if self._engine is not None:
            await asyncio.to_thread(self._engine.stop, grace_s)
        if self._saving is not None:
            self._saving.cancel()
        if self._kept is not None and self._kept.keeper is not None:
            await asyncio.to_thread(self._kept.keeper.save)

    def healthy(self) -> None:
        """Raises Unavailable if the compute thread is dead or has been at one batch for too long."""
        if self._engine is None:
            raise Unavailable("the drafter has not started")
        stalled_s = self._engine.stalled_s()
        if stalled_s > self._config.stall_s:
            raise Unavailable(f"the drafter has made no progress for {stalled_s:.1f} s")
