"""Light client of Paceline: grpcio and protobuf only.

    from paceline_client import Chat, Client, Delta

    with Client("127.0.0.1:9000") as client:
        for event in client.generate(Chat.user("Name three rivers."), max_tokens=64):
            if isinstance(event, Delta):
                print(event.text, end="", flush=True)

`AsyncClient` is the same for code with an event loop.
"""

from paceline_client.address import DEFAULT_ADDRESS
from paceline_client.client import AsyncClient
from paceline_client.connection import RetryPolicy, TlsOptions
from paceline_client.errors import (
    ClientError,
    DeadlineExceeded,
    InvalidRequest,
    NotAllowed,
    NotFound,
    Overloaded,
    ServerFault,
    Unavailable,
)
from paceline_client.nucleus import Nucleus
from paceline_client.replies import Delta, Event, Finish, Reply, Speculation, Timings, Usage
from paceline_client.request import Chat, GenerateFields, Message, Prompt, Tokens
from paceline_client.rounds import RoundTrace
from paceline_client.service import DrafterState, ModelInfo, Status, TargetState
from paceline_client.sync import Client, Stream

__all__ = [
    "DEFAULT_ADDRESS",
    "AsyncClient",
    "Chat",
    "Client",
    "ClientError",
    "DeadlineExceeded",
    "Delta",
    "DrafterState",
    "Event",
    "Finish",
    "GenerateFields",
    "InvalidRequest",
    "Message",
    "ModelInfo",
    "NotAllowed",
    "NotFound",
    "Nucleus",
    "Overloaded",
    "Prompt",
    "Reply",
    "RetryPolicy",
    "RoundTrace",
    "ServerFault",
    "Speculation",
    "Status",
    "Stream",
    "TargetState",
    "Timings",
    "TlsOptions",
    "Tokens",
    "Unavailable",
    "Usage",
]
