"""Between messages and the types of the maths."""

from __future__ import annotations

from paceline.errors import InvalidField
from paceline.rpc.arrays import bytes_to_floats, bytes_to_ints, floats_to_bytes, ints_to_bytes
from paceline.speculation.sampling import SamplingParams
from paceline.speculation.tree import DraftTree, TreeFault
from paceline.v1 import common_pb2, draft_pb2


def sampling_to_proto(params: SamplingParams, *, with_seed: bool = True) -> common_pb2.SamplingParams:
    """A message with every field set; the seed stays home unless the other side needs the noise."""
    message = common_pb2.SamplingParams(temperature=params.temperature, top_k=params.top_k, top_p=params.top_p)
    if with_seed:
        message.seed = params.seed
    return message


def sampling_from_proto(message: common_pb2.SamplingParams) -> SamplingParams:
    """Parameters from a message of another service, absent fields at their defaults; ranges are not checked."""
    return SamplingParams(
        temperature=message.temperature,
        top_k=message.top_k,
        top_p=message.top_p if message.HasField("top_p") else 1.0,
        seed=message.seed,
    )


def check_sampling(params: SamplingParams, vocab_size: int) -> None:
    """Raises InvalidField for the first field out of range."""
    for field, value, allowed in params.faults(vocab_size):
        raise InvalidField(f"sampling.{field}", value, allowed)


def tree_to_proto(tree: DraftTree, base_length: int) -> draft_pb2.DraftTree:
    """A tree that grows from a context of `base_length` tokens."""
    return draft_pb2.DraftTree(
        base_length=base_length,
        tokens=ints_to_bytes(tree.tokens),
        parents=ints_to_bytes(tree.parents),
        log_probs=b"" if tree.log_probs is None else floats_to_bytes(tree.log_probs),
    )


def tree_from_proto(message: draft_pb2.DraftTree, *, vocab_size: int, max_nodes: int, max_depth: int) -> DraftTree:
    """A tree from the wire, checked. Raises TreeFault naming the rule it breaks."""
    try:
        tokens = bytes_to_ints(message.tokens, "tokens")
        parents = bytes_to_ints(message.parents, "parents")
        log_probs = bytes_to_floats(message.log_probs, "log_probs") if message.log_probs else None
    except InvalidField as error:
        raise TreeFault(str(error)) from error
    return DraftTree.checked(
        tokens, parents, log_probs, vocab_size=vocab_size, max_nodes=max_nodes, max_depth=max_depth
    )
