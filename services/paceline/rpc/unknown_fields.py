"""Refusal of fields this version does not know, which protobuf would otherwise drop without a word."""

from __future__ import annotations

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from paceline.errors import InvalidField


def refuse_unknown(message: Message, path: str = "") -> None:
    """Raises InvalidField, naming path and number, if `message` or one nested in it holds an unknown field."""
    refuse_unknown_here(message, path)
    for descriptor, value in message.ListFields():
        if descriptor.message_type is None or descriptor.message_type.GetOptions().map_entry:
            continue
        name = f"{path}.{descriptor.name}" if path else descriptor.name
        for index, item in enumerate([value] if isinstance(value, Message) else value):
            refuse_unknown(item, name if isinstance(value, Message) else f"{name}[{index}]")


def refuse_unknown_here(message: Message, path: str = "") -> None:
    """The same for `message` alone, where the nested ones are looked at one by one."""
    unknown = UnknownFieldSet(message)
    if len(unknown):
        where = f"{path or message.DESCRIPTOR.name}: field {unknown[0].field_number}"
        raise InvalidField(where, "a value", "fields of the server's version", "leave it out or upgrade the server")
