"""Targets in use: one cached channel and one description per replica."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc.aio

from paceline.errors import PacelineError, TokenizerMismatch, Unavailable
from paceline.gateway.config import GatewayConfig
from paceline.gateway.deadline import Deadline
from paceline.gateway.directory import TargetDirectory, TargetLease
from paceline.rpc.channels import open_channel
from paceline.rpc.status import from_rpc_error
from paceline.v1 import inference_pb2, target_pb2, target_pb2_grpc


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """A replica that may be called."""

    lease: TargetLease
    stub: target_pb2_grpc.TargetServiceStub
    model: inference_pb2.GetModelInfoResponse  # as it described itself


@dataclass(slots=True, eq=False)
class _Link:
    lease: TargetLease
    channel: grpc.aio.Channel
    stub: target_pb2_grpc.TargetServiceStub
    users: int = 0
    retired: bool = False  # no longer handed out; closed when its last user leaves
    model: inference_pb2.GetModelInfoResponse | None = None
    describing: asyncio.Lock = field(default_factory=asyncio.Lock)


class Targets:
    """Leases targets from a directory. Belongs to one event loop."""

    def __init__(self, directory: TargetDirectory, config: GatewayConfig, fingerprint: str | None) -> None:
        """`fingerprint` is the tokenizer's, which every target must share; None takes any."""
        self._directory, self._config, self._fingerprint = directory, config, fingerprint
        self._links: dict[str, _Link] = {}

    @asynccontextmanager
    async def lease(self, deadline: Deadline) -> AsyncIterator[Target]:
        """A target while the block runs.

        Raises Unavailable if none is found in time or each that was named is dead, TokenizerMismatch if it does not
        share our tokenizer, DeadlineExceeded.
        """
        failures = 0
        while True:
            link = await self._link(await self._find(deadline))
            async with self._using(link):
                try:
                    model = await self._model(link, deadline)
                except Unavailable:
                    failures += 1
                    if failures > self._config.max_failovers:
                        raise
                    continue
                yield Target(link.lease, link.stub, model)
                return

    def give_up(self, target: Target) -> None:
        """Hands the replica's channel out no more; calls that run on it go on."""
        link = self._links.get(target.lease.address)
        if link is not None and link.lease == target.lease:
            self._retire(link)

    async def describe(self, deadline: Deadline) -> inference_pb2.GetModelInfoResponse:
        """The model as a target describes it now; parts of it change, such as the proposer."""
        async with self.lease(deadline) as target:
            answer = await self._ask(target.stub, target.lease, deadline)
            return answer.model

    async def statuses(self, deadline: Deadline) -> list[target_pb2.GetTargetStatusResponse]:
        """State of every replica in use, and of one that the directory names; those that do not answer are left out."""
        try:
            async with self.lease(deadline):
                pass
        except PacelineError:
            pass  # the others may still answer
        answers = await asyncio.gather(*(self._status(link, deadline) for link in list(self._links.values())))
        return [answer for answer in answers if answer is not None]

    async def close(self) -> None:
        """Closes every channel; calls on them end."""
        links, self._links = list(self._links.values()), {}
        for link in links:
            link.retired = True
            await link.channel.close()

    # -- finding ------------------------------------------------------------------------------------------------------

    async def _find(self, deadline: Deadline) -> TargetLease:
        limit_s = deadline.at_most(self._config.lease_timeout_s)
        try:
            return await asyncio.wait_for(self._directory.lease(), limit_s)
        except TimeoutError:
            deadline.left_s()
            raise Unavailable(
                f"no target answered within {self._config.lease_timeout_s:g} s (lease_timeout_s)"
            ) from None

    async def _link(self, lease: TargetLease) -> _Link:
        known = self._links.get(lease.address)
        if known is not None and known.lease != lease:  # restarted at the same address: its channel may be backing off
            self._retire(known)
            await self._close_unused(known)
            known = None
        if known is None:
            channel = open_channel(lease.address, self._config.target_tls)
            known = self._links[lease.address] = _Link(lease, channel, target_pb2_grpc.TargetServiceStub(channel))
        return known

    def _retire(self, link: _Link) -> None:
        link.retired = True
        if self._links.get(link.lease.address) is link:
            del self._links[link.lease.address]

    @asynccontextmanager
    async def _using(self, link: _Link) -> AsyncIterator[None]:
        link.users += 1
        try:
            yield
        finally:
            link.users -= 1
            await self._close_unused(link)

    async def _close_unused(self, link: _Link) -> None:
        if link.retired and link.users == 0:
            await link.channel.close()

    # -- asking -------------------------------------------------------------------------------------------------------

    async def _model(self, link: _Link, deadline: Deadline) -> inference_pb2.GetModelInfoResponse:
        async with link.describing:
            if link.model is None:
                try:
                    answer = await self._ask(link.stub, link.lease, deadline)
                except Unavailable:
                    self._retire(link)
                    raise
                self._check(answer.model, link.lease)
                link.model = answer.model
        return link.model

    async def _ask(
        self, stub: target_pb2_grpc.TargetServiceStub, lease: TargetLease, deadline: Deadline
    ) -> target_pb2.GetTargetInfoResponse:
        limit_s = deadline.at_most(self._config.call_timeout_s)
        try:
            return await stub.GetTargetInfo(target_pb2.GetTargetInfoRequest(), timeout=limit_s)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                deadline.left_s()
                limit = f"{self._config.call_timeout_s:g} s (call_timeout_s)"
                raise Unavailable(f"the target at {lease.address} did not describe itself within {limit}") from None
            raise from_rpc_error(error) from None

    async def _status(self, link: _Link, deadline: Deadline) -> target_pb2.GetTargetStatusResponse | None:
        limit_s = deadline.at_most(self._config.call_timeout_s)
        async with self._using(link):
            try:
                return await link.stub.GetTargetStatus(target_pb2.GetTargetStatusRequest(), timeout=limit_s)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNAVAILABLE:
                    self._retire(link)
                return None

    def _check(self, model: inference_pb2.GetModelInfoResponse, lease: TargetLease) -> None:
        theirs = model.tokenizer_fingerprint
        if self._fingerprint is not None and theirs != self._fingerprint:
            raise TokenizerMismatch(
                f"the gateway and the target at {lease.address} ({model.model}) do not share a tokenizer: fingerprints"
                f" {self._fingerprint[:12]} and {theirs[:12] or 'none'}; set the gateway's model to the target's"
            )
