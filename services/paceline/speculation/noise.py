"""Noise addressed by (seed, choice, position, purpose, token): the same bits on every device and replica.

A counter-based hash: the key names a stream, the counter is the token id, and splitmix64's finaliser turns
`key + (token + 1) * golden ratio` into 64 bits. numpy (uint64) and torch (int64, wrapping) give the same bits. The
logarithm is always taken by numpy on the host, and only for the ids that need it, so that a device's own log never
decides a draw. Source: THEORY 1; splitmix64 is Steele, Lea and Flood 2014.
"""

from __future__ import annotations

import hashlib
import struct
from enum import IntEnum

import numpy as np
import torch
from numpy.typing import NDArray

_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_MASK = (1 << 64) - 1
_BELOW_ONE = 1.0 - 2.0**-53


class Purpose(IntEnum):
    """What a stream of noise is used for; streams of different purposes are independent."""

    DRAW = 1  # the token drawn at a position; coupled proposals look at it too
    ACCEPT = 2  # uniforms of accept tests
    RESIDUAL = 3  # the draw from a residual after every sibling was rejected
    NUCLEUS = 4  # the same where no tree may know it: nucleus requests (THEORY 4), and those with sampled proposals
    PROPOSE = 5  # drawing siblings; used for nothing else (THEORY 3, clause 5)


def noise_key(seed: int, choice: int, position: int, purpose: Purpose) -> int:
    """The 64-bit key of one stream.

    Args:
        seed: 0 to 2**64 - 1.
        choice: index of the reply among n.
        position: index in the full context, prompt included, of the token that is drawn.
        purpose: what the stream is for.
    """
    key = _mix(seed & _MASK)
    for part in (choice, position, int(purpose)):
        key = _mix((key ^ _mix((part + 1) * _GOLDEN & _MASK)) + _GOLDEN & _MASK)
    return key


def propose_seed(seed: int, choice: int) -> int:
    """The seed of the noise that draws siblings: a drafter may have it, and cannot infer the request's from it."""
    digest = hashlib.sha256(b"paceline propose" + struct.pack("<QI", seed & _MASK, choice)).digest()
    return int.from_bytes(digest[:8], "little")


def noise_bits_numpy(key: int, ids: NDArray[np.int64]) -> NDArray[np.uint64]:
    """64 bits for each id, in the shape of `ids`."""
    with np.errstate(over="ignore"):
        bits = np.uint64(key) + (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN)
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(_MIX_1)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(_MIX_2)
        mixed: NDArray[np.uint64] = bits ^ (bits >> np.uint64(31))
    return mixed


def noise_bits_torch(key: int, ids: torch.Tensor) -> torch.Tensor:
    """The same 64 bits as int64, on the device of `ids` ([N] int64)."""
    bits = _signed(key) + (ids + 1) * _signed(_GOLDEN)
    bits = (bits ^ _shifted(bits, 30)) * _signed(_MIX_1)
    bits = (bits ^ _shifted(bits, 27)) * _signed(_MIX_2)
    return bits ^ _shifted(bits, 31)


def uniforms(key: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Uniforms strictly between 0 and 1, one for each id: (upper 53 bits + 0.5) * 2**-53."""
    found = ((noise_bits_numpy(key, ids) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return np.minimum(found, _BELOW_ONE)  # 53 set bits and a half round to 1, and -log 1 would divide by zero


def uniform(key: int, index: int) -> float:
    """One uniform of a stream, strictly between 0 and 1."""
    return float(uniforms(key, np.asarray([index], dtype=np.int64))[0])


def exponential(key: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Standard exponential noise E for each id; `argmin E / probs` is a draw from `probs`."""
    return -np.log(uniforms(key, ids))


def gumbel(key: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Standard Gumbel noise g = -log E for each id; `argmax log probs + g` is the same draw."""
    return -np.log(exponential(key, ids))


def _mix(bits: int) -> int:
    bits = (bits ^ (bits >> 30)) * _MIX_1 & _MASK
    bits = (bits ^ (bits >> 27)) * _MIX_2 & _MASK
    return bits ^ (bits >> 31)


def _signed(bits: int) -> int:
    return bits - (1 << 64) if bits >= 1 << 63 else bits


def _shifted(bits: torch.Tensor, count: int) -> torch.Tensor:
    """Logical right shift: torch's int64 shift is arithmetic, so the copied sign bits are masked off."""
    return (bits >> count) & ((1 << (64 - count)) - 1)
