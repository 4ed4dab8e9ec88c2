"""What the benchmarks have to show: one row per goal, checked against the results of the same run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

from .results import Results, Statistic, p95, ratio_text

NOT_MEASURED = "not measured"


def times(value: float) -> str:
    return f"{value:.2f} x"


@dataclass(frozen=True)
class Goal:
    """`measured` may be at most `limit`, or with `at_least` must reach it."""

    what: str
    limit: float
    measured: Callable[[Results], float]
    show: Callable[[float], str]
    at_least: bool = False

    def row(self, results: Results) -> list[str]:
        wanted = f"{'>=' if self.at_least else '<='} {self.show(self.limit)}"
        try:
            value = self.measured(results)
        except KeyError:  # a shape that was not run, or failed
            return [self.what, wanted, NOT_MEASURED, ""]
        met = value >= self.limit if self.at_least else value <= self.limit
        return [self.what, wanted, self.show(value), "met" if met else "MISSED"]


def smaller(what: str, shape: str, limit: float) -> Goal:
    """The file, as a part of the reference's."""
    return Goal(what, limit, lambda results: results.ratio(shape, "file"), ratio_text)


def faster(what: str, shape: str, measure: str, limit: float, statistic: Statistic = median) -> Goal:
    """How many times less time than the reference."""
    return Goal(what, limit, lambda results: 1 / results.ratio(shape, measure, statistic=statistic), times, at_least=True)


def beside_memory(what: str, shape: str, measure: str, limit: float, *, at_least: bool = False) -> Goal:
    """Ours over InMemorySaver's."""
    return Goal(what, limit, lambda results: results.ratio(shape, measure, "InMemorySaver"), times, at_least)


def at_most_ms(what: str, shape: str, measure: str, limit: float) -> Goal:
    return Goal(what, limit, lambda results: results.value(shape, measure), "{:.1f} ms".format)


GOALS = (
    smaller("file: 10 kB chat, part of the reference's", "chat-10kb", 1 / 60),
    smaller("file: 1 kB chat", "chat-1kb", 1 / 40),
    smaller("file: constant document", "document", 1 / 40),
    Goal("growth of the file, 400 against 200 steps", 2.3, lambda results: results.value("growth", "400 / 200"), times),
    faster("step of the 10 kB chat, times faster", "chat-10kb", "step", 3),
    beside_memory("step of the 10 kB chat, against InMemorySaver", "chat-10kb", "step", 1.3),
    faster("step of a small state: not slower", "small", "step", 1),
    faster("step of a small state: the aim", "small", "step", 1.3),
    faster("put at 1 MB, median, dicts", "put-1mb", "dicts", 3),
    faster("put at 1 MB, median, messages", "put-1mb", "messages", 3),
    faster("put at 1 MB, 95th percentile, dicts", "put-1mb", "dicts", 5, statistic=p95),
    faster("put at 1 MB, 95th percentile, messages", "put-1mb", "messages", 5, statistic=p95),
    faster("get latest after the 10 kB chat: not slower", "chat-10kb", "get latest", 1),
    faster("get latest, new saver object: not slower", "chat-10kb", "get latest, new saver", 1),
    faster("list(limit=20) there", "chat-10kb", "list(limit=20)", 2),
    Goal("50 async threads, steps/s", 3, lambda results: results.ratio("threads-50", "rate"), times, at_least=True),
    beside_memory("50 async threads, against InMemorySaver", "threads-50", "rate", 0.8, at_least=True),
    at_most_ms("longest pause, 8 MB put, dicts", "pause", "aput, dicts", 10),
    at_most_ms("longest pause, 8 MB put, messages", "pause", "aput, messages", 10),
    faster("longest pause, 8 MB get, dicts", "pause", "aget, dicts", 3),
    faster("longest pause, 8 MB get, messages", "pause", "aget, messages", 3),
    Goal("8 processes, runs that failed", 0, lambda results: results.value("processes-8", "errors"), "{:.0f}".format),
    faster("8 processes, total time: not above", "processes-8", "wall", 1),
    at_most_ms("newest 10 inputs of 100,000", "history-100k", "in the thread", 5),
    faster("newest 10 inputs of 100,000, times faster", "history-100k", "in the thread", 5),
    at_most_ms("get_state, 5,000 steps of a DeltaChannel", "delta-5000", "get_state", 100),
    faster("get_state, 5,000 steps: faster than the reference", "delta-5000", "get_state", 1),
)


def goal_rows(results: Results, *, all_of_them: bool) -> Iterator[list[str]]:
    """The head, then every goal; or only those that this run measured."""
    yield ["what", "goal", "measured", ""]
    rows = (goal.row(results) for goal in GOALS)
    yield from (row for row in rows if all_of_them or row[2] != NOT_MEASURED)
