"""Arrays on the wire: little-endian bytes, as the protos say."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InvalidField

_INT32 = np.iinfo(np.int32)


def ints_to_bytes(values: Sequence[int] | NDArray[np.integer]) -> bytes:
    """Little-endian int32. Raises OverflowError for a value that does not fit."""
    if isinstance(values, np.ndarray) and values.dtype != np.int32 and values.size:  # numpy wraps arrays in silence
        low, high = int(values.min()), int(values.max())
        if low < _INT32.min or high > _INT32.max:
            raise OverflowError(f"values from {low} to {high} do not fit into int32")
    return np.asarray(values, dtype="<i4").tobytes()


def bytes_to_ints(data: bytes, field: str = "array") -> NDArray[np.int32]:
    """[len / 4] int32. Raises InvalidField, naming `field`, unless the length is a multiple of 4."""
    return _decoded(data, field, "<i4").astype(np.int32, copy=False)


def floats_to_bytes(values: Sequence[float] | NDArray[np.floating]) -> bytes:
    """Little-endian float32."""
    return np.asarray(values, dtype="<f4").tobytes()


def bytes_to_floats(data: bytes, field: str = "array") -> NDArray[np.float32]:
    """[len / 4] float32. Raises InvalidField, naming `field`, unless the length is a multiple of 4."""
    return _decoded(data, field, "<f4").astype(np.float32, copy=False)


def _decoded(data: bytes, field: str, dtype: str) -> NDArray[np.generic]:
    if len(data) % 4:
        raise InvalidField(field, f"{len(data)} bytes", "a multiple of 4 bytes, little-endian")
    return np.frombuffer(data, dtype=dtype)
