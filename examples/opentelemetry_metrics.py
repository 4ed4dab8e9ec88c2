"""How long saving takes, how much is saved and how often it fails, as OpenTelemetry metrics.

    pip install opentelemetry-sdk
    python examples/opentelemetry_metrics.py

A saver calls ``on_event`` after each of its operations; here it records into three instruments. Agents run, sync and async;
another program holds the write lock for too long meanwhile; then what a collector would be sent is printed as a table.
Thread ids are no attributes: each value of an attribute is a time series of its own.

To use a real model, let ``work`` call one; and give the ``MeterProvider`` a reader that exports to your collector:
``PeriodicExportingMetricReader(OTLPMetricExporter())``.
"""

import argparse
import asyncio
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any, TypedDict

from langgraph.graph import END, START, StateGraph
from opentelemetry.metrics import Meter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from langgraph_sqlite_ckpt import BusyError, Event, SqliteSaver

STEPS = 5
AGENTS = 8


class Metrics:
    """For ``on_event``. Instruments are thread-safe, as a hook has to be."""

    def __init__(self, meter: Meter) -> None:
        self.seconds = meter.create_histogram("checkpointer.duration", "s", "how long each operation took")
        self.bytes = meter.create_counter("checkpointer.bytes", "By", "values that were saved and read")
        self.shared = meter.create_histogram("checkpointer.commit.operations", "1", "operations that shared a commit")

    def __call__(self, event: Event) -> None:
        about = {"operation": event.operation}
        failed = {"error.type": type(event.error).__name__} if event.error is not None else {}
        self.seconds.record(event.seconds, about | failed)
        if event.bytes is not None:
            self.bytes.add(event.bytes, about)
        if event.operation == "commit" and event.error is None:
            self.shared.record(event.items or 0)


class State(TypedDict):
    step: int
    notes: str


def work(state: State) -> State:
    step = state["step"] + 1
    return {"step": step, "notes": state["notes"] + f"step {step}: found something. "}


def agent(saver: SqliteSaver) -> Any:
    builder = StateGraph(State).add_node("work", work).add_edge(START, "work")
    builder.add_conditional_edges("work", lambda state: END if state["step"] >= STEPS else "work", ["work", END])
    return builder.compile(checkpointer=saver)


def on(thread: str) -> Any:
    return {"configurable": {"thread_id": thread}}


def run(db: Path, metrics: Metrics) -> None:
    task: State = {"step": 0, "notes": ""}

    async def together(graph: Any) -> None:
        await asyncio.gather(*(graph.ainvoke(task, on(f"async-{number}")) for number in range(AGENTS)))

    with SqliteSaver(db, on_event=metrics) as saver:
        agent(saver).invoke(task, on("sync"))
        asyncio.run(together(agent(saver)))
        print(f"{len(saver.threads())} agents of {STEPS} steps have ended")


def run_into_a_lock(db: Path, metrics: Metrics) -> None:
    with (
        closing(sqlite3.connect(db, isolation_level=None)) as other,
        SqliteSaver(db, on_event=metrics, busy_timeout=0.01) as saver,
    ):
        other.execute("BEGIN IMMEDIATE")
        try:
            agent(saver).invoke({"step": 0, "notes": ""}, on("late"))
        except BusyError:
            print("one could not save: another program held the write lock for too long")


def show(reader: InMemoryMetricReader) -> None:
    sent = reader.get_metrics_data()
    assert sent is not None
    metrics = {m.name: m.data.data_points for r in sent.resource_metrics for s in r.scope_metrics for m in s.metrics}
    sizes = {point.attributes["operation"]: point.value for point in metrics["checkpointer.bytes"]}
    print(f"\n{'operation':<12}{'error':<12}{'count':>6}{'mean':>12}{'bytes':>9}")
    for point in sorted(metrics["checkpointer.duration"], key=lambda point: -point.count):
        operation, error = point.attributes["operation"], point.attributes.get("error.type", "")
        size = "" if error else sizes.get(operation, "")
        print(f"{operation:<12}{error:<12}{point.count:>6}{point.sum / point.count * 1000:>9.2f} ms{size:>9}")
    [shared] = metrics["checkpointer.commit.operations"]
    print(f"\n{shared.sum} operations in {shared.count} commits")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    metrics = Metrics(provider.get_meter("langgraph_sqlite_ckpt"))
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder) / "agent.db", metrics)
        run_into_a_lock(Path(folder) / "agent.db", metrics)
    show(reader)
    provider.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
