"""One table between error types and gRPC statuses, read in both directions."""

from __future__ import annotations

import logging
from typing import Any

import grpc
import grpc.aio

from paceline import errors

logger = logging.getLogger(__name__)

_NO_DETAILS = "internal error; the server's log has the details"

STATUS_OF: dict[type[errors.PacelineError], grpc.StatusCode] = {
    errors.InvalidField: grpc.StatusCode.INVALID_ARGUMENT,
    errors.UnsupportedField: grpc.StatusCode.INVALID_ARGUMENT,
    errors.ModelNotFound: grpc.StatusCode.NOT_FOUND,
    errors.ModelUnsupported: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ModelDamaged: grpc.StatusCode.FAILED_PRECONDITION,
    errors.TokenizerMismatch: grpc.StatusCode.FAILED_PRECONDITION,
    errors.Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
    errors.DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.EngineFault: grpc.StatusCode.INTERNAL,
}


class RemoteError(errors.PacelineError):
    """An error another service reported, with the status it reported; passed on as it came."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        self.code = code
        super().__init__(details)


def status_of(error: BaseException) -> tuple[grpc.StatusCode, str]:
    """Status and text a caller may see. Anything unknown is INTERNAL without details, which go to the log."""
    if isinstance(error, RemoteError):
        return error.code, str(error)
    for kind in type(error).__mro__:
        if kind in STATUS_OF:
            return STATUS_OF[kind], str(error)
    logger.error("unexpected error while serving a call", exc_info=error)
    return grpc.StatusCode.INTERNAL, _NO_DETAILS


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: BaseException) -> None:
    """Ends the call with the error's status. It does not return."""
    code, details = status_of(error)
    await context.abort(code, details)


def from_rpc_error(error: grpc.aio.AioRpcError) -> errors.PacelineError:
    """The error a peer's status stands for; one that stands for several types, or none, stays a RemoteError."""
    code, details = error.code(), error.details() or error.code().name
    if code is grpc.StatusCode.UNKNOWN:  # an error that escaped the peer's own table; its text is not for callers
        logger.error("a peer failed without a status of its own: %s", details)
        return RemoteError(grpc.StatusCode.INTERNAL, _NO_DETAILS)
    kinds: dict[grpc.StatusCode, type[errors.PacelineError]] = {
        grpc.StatusCode.RESOURCE_EXHAUSTED: errors.Overloaded,
        grpc.StatusCode.UNAVAILABLE: errors.Unavailable,
        grpc.StatusCode.DEADLINE_EXCEEDED: errors.DeadlineExceeded,
    }
    kind = kinds.get(code)
    return RemoteError(code, details) if kind is None else kind(details)
