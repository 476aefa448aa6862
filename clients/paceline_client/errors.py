"""Errors of the client, one type per kind of status; `retryable` says whether sending the call again makes sense."""

from __future__ import annotations

import grpc


class ClientError(Exception):
    """Base of every error the client raises; its text is plain and safe to show."""

    retryable: bool = False  # True: nothing was delivered, and the same call may work a little later or elsewhere

    def __init__(self, text: str, code: grpc.StatusCode | None = None) -> None:
        """`code` is the gRPC status behind it; None where the client itself refused the call."""
        self.code = code
        super().__init__(text)


class InvalidRequest(ClientError):
    """The request, or its size, is wrong; the text names field, value and what is allowed."""


class NotFound(ClientError):
    """The request names a model or application that is not served."""


class NotAllowed(ClientError):
    """Credentials are missing or refused."""


class Overloaded(ClientError):
    """A limit of the server is reached; nothing was started."""

    retryable = True


class Unavailable(ClientError):
    """The server cannot be reached or went away."""

    def __init__(self, text: str, code: grpc.StatusCode | None = None, *, delivered: bool = False) -> None:
        """`delivered` says that part of the reply had come already, so that a plain retry would repeat it."""
        super().__init__(text, code)
        self.retryable = not delivered


class DeadlineExceeded(ClientError):
    """The time allowed for the call passed."""


class ServerFault(ClientError):
    """The server failed at this call."""


_BY_CODE: dict[grpc.StatusCode, type[ClientError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequest,
    grpc.StatusCode.FAILED_PRECONDITION: InvalidRequest,
    grpc.StatusCode.UNIMPLEMENTED: InvalidRequest,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.UNAUTHENTICATED: NotAllowed,
    grpc.StatusCode.PERMISSION_DENIED: NotAllowed,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
}

# What Ray Serve's ingress reports where the replica that answered died: never UNAVAILABLE.
_REPLICA_DIED = {
    grpc.StatusCode.INTERNAL: ("actor died", "actor is dead", "actor was killed", "rst_stream"),
    grpc.StatusCode.UNKNOWN: ("actor died", "actor is dead", "actor was killed"),
    grpc.StatusCode.CANCELLED: ("rst_stream",),
}


def from_status(code: grpc.StatusCode, details: str | None, *, delivered: bool = False) -> ClientError:
    """The typed error of a failed call; `delivered` says that at least one message of the reply had come."""
    text = details or code.name
    if code is grpc.StatusCode.UNAVAILABLE:
        return Unavailable(text, code, delivered=delivered)
    if any(mark in text.lower() for mark in _REPLICA_DIED.get(code, ())):
        # The ingress's text holds process ids and addresses; it is of no use to the caller.
        return Unavailable("the replica that answered this call died", code, delivered=delivered)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in text.lower():
        return InvalidRequest(text, code)  # a message over the size limit stays over it
    return _BY_CODE.get(code, ServerFault)(text, code)
