"""A straight line through measurements that fade."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

MEMORY = 0.95  # weight that the past keeps per measurement
PRIOR = 1.0  # measurements; weight of the assumption that the line goes through the origin


class Line:
    """Least squares of y on x. Where x has hardly varied, y is taken to be in proportion to it.

    Both coefficients stay at 0 or above: neither a pass nor a wait gets shorter by what is added.
    """

    __slots__ = ("_weight", "_x", "_xx", "_xy", "_y")

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    @property
    def known(self) -> bool:
        """True once anything was measured."""
        return self._weight > 0

    @property
    def weight(self) -> float:
        """Measurements it is drawn through, less those that have faded."""
        return self._weight

    def learn(self, x: float, y: float) -> None:
        """Takes a measurement in; both at 0 or above."""
        self._weight = MEMORY * self._weight + 1
        self._x, self._y = MEMORY * self._x + x, MEMORY * self._y + y
        self._xx, self._xy = MEMORY * self._xx + x * x, MEMORY * self._xy + x * y

    def at(self, x: ArrayLike) -> NDArray[np.float64]:
        """The line's y at each x; 0 where nothing was measured."""
        if not self.known:
            return np.zeros_like(x, dtype=np.float64)
        weight = self._weight + PRIOR
        spread = weight * self._xx - self._x * self._x
        start, slope = self._y / self._weight, 0.0  # where y falls with x, or x was never anything but 0
        if spread > 0 and weight * self._xy > self._x * self._y:
            slope = (weight * self._xy - self._x * self._y) / spread
            start = (self._y * self._xx - self._x * self._xy) / spread
        if start < 0:
            start, slope = 0.0, self._xy / self._xx
        return start + slope * np.asarray(x, dtype=np.float64)
