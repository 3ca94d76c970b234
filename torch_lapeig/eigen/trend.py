"""How residuals fall, and what follows for the products that are left."""

from __future__ import annotations

import math

LEARNED = 3  # looks before a rate of convergence is believed


class Trend:
    """Shortfalls on the way, and the products that are left to 1 by the rate at which they fall.

    Args:
        least: products between looks at Ritz pairs.

    Attributes:
        products: so far. left: of these, infinite where the shortfall does not fall; 0 as long as too few are known.
    """

    def __init__(self, least: int) -> None:
        self.known: list[tuple[int, float]] = []
        self.least = least

    def add(self, products: int, shortfall: float) -> None:
        """After so many products the residuals were so many times what is allowed."""
        self.known.append((products, math.log(max(shortfall, 1e-300))))

    @property
    def products(self) -> int:
        """So far."""
        return self.known[-1][0]

    @property
    def until_next(self) -> int:
        """Products until the next look: half of those that the last rate promises, up to a third of those so far."""
        most = max(self.least, self.products // 3)
        if len(self.known) < 2:
            return most
        (before, high), (now, low) = self.known[-2:]
        promised = low * (now - before) / (high - low) if low < high else math.inf
        return max(self.least, int(min(most, promised / 2)))  # residuals fall faster and faster

    @property
    def left(self) -> float:
        """Products to a shortfall of 1, by the better of the rates since the beginning and since halfway."""
        if len(self.known) <= LEARNED:
            return 0.0
        now, last = self.known[-1]
        starts = (self.known[0], self.known[len(self.known) // 2])
        rate = max((before - last) / (now - products) for products, before in starts)
        return last / rate if rate > 0 else math.inf
