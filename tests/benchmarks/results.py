"""What was measured, how it is compared, and how it is printed."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from .savers import Peer
from .shape import Samples, Shape

Statistic = Callable[[Sequence[float]], float]


def p95(samples: Sequence[float]) -> float:
    """The value that 95 of 100 samples do not exceed (nearest rank)."""
    return sorted(samples)[math.ceil(0.95 * len(samples)) - 1]


class Results:
    """Samples by round. A statistic is taken in each round, and the median of the rounds counts.

    A ratio is taken round by round too, between two savers that ran within seconds of each other: on a machine that
    others use, that is steadier than the ratio of two medians. Asking for what was not measured raises KeyError.
    """

    def __init__(self) -> None:
        self._rounds: dict[tuple[str, str, str], list[list[float]]] = defaultdict(list)
        self.failures: dict[tuple[str, str], str] = {}

    def add(self, shape: str, peer: str, samples: Samples, size: int | None) -> None:
        for measure, values in samples.items():
            self._rounds[shape, peer, measure].append(list(values))
        if size is not None:
            self._rounds[shape, peer, "file"].append([size / 1e6])

    def value(self, shape: str, measure: str, peer: str = "ours", statistic: Statistic = statistics.median) -> float:
        return statistics.median(self._per_round(shape, measure, peer, statistic))

    def ratio(
        self,
        shape: str,
        measure: str,
        other: str = "SqliteSaver",
        peer: str = "ours",
        statistic: Statistic = statistics.median,
    ) -> float:
        """`peer`'s value over `other`'s."""
        mine = self._per_round(shape, measure, peer, statistic)
        others = self._per_round(shape, measure, other, statistic)
        return statistics.median(a / b if b else math.nan for a, b in zip(mine, others, strict=False))

    def _per_round(self, shape: str, measure: str, peer: str, statistic: Statistic) -> list[float]:
        key = (shape, peer, measure)
        if key not in self._rounds:  # a defaultdict would invent it
            raise KeyError(key)
        return [statistic(samples) for samples in self._rounds[key]]

    def rows(self, shape: Shape, peers: Sequence[Peer]) -> Iterator[list[str]]:
        """The table of one shape: its head first, then one row per measure and saver."""
        yield ["measure", "saver", "median", "p95", "/ reference", "/ InMemory", "file", "/ reference"]
        first = next(iter(shape.units))
        for measure, unit in shape.units.items():
            for peer in peers:
                label = peer.async_name if shape.asynchronous else peer.name
                if failure := self.failures.get((shape.name, peer.name)):
                    yield [measure, label, failure]
                else:
                    yield [measure, label, *self._cells(shape.name, measure, peer.name, unit, weigh=measure == first)]

    def _cells(self, shape: str, measure: str, peer: str, unit: str, *, weigh: bool) -> list[str]:
        def try_ratio(measure: str, other: str) -> str:
            try:
                return ratio_text(self.ratio(shape, measure, other, peer))
            except KeyError:  # the other one takes no part in this shape
                return ""

        median, high = self.value(shape, measure, peer), self.value(shape, measure, peer, p95)
        cells = [number(median, unit), number(high, unit) if high != median else ""]
        cells += [try_ratio(measure, "SqliteSaver"), try_ratio(measure, "InMemorySaver")]
        if weigh and (shape, peer, "file") in self._rounds:
            cells += [number(self.value(shape, "file", peer), "MB"), try_ratio("file", "SqliteSaver")]
        return cells


def number(value: float, unit: str) -> str:
    """Three digits are all that a benchmark on a shared machine can say."""
    digits = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:.{digits}f} {unit}"


def ratio_text(ratio: float) -> str:
    if math.isnan(ratio):
        return ""
    return f"1/{1 / ratio:.0f}" if 0 < ratio < 0.1 else f"{ratio:.2f}"


def table(rows: Sequence[Sequence[str]], *, markdown: bool) -> str:
    """Rows of cells, the first one the head, as aligned columns; shorter rows are filled up."""
    columns = len(rows[0])
    full = [[*row, *[""] * (columns - len(row))] for row in rows]
    widths = [max(len(row[column]) for row in full) for column in range(columns)]
    full.insert(1, ["-" * width for width in widths])
    left, between, right = ("| ", " | ", " |") if markdown else ("", "  ", "")
    lines = [left + between.join(map(str.ljust, row, widths)) + right for row in full]
    return "\n".join(line.rstrip() for line in lines)
