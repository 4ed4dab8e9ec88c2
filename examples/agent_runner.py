"""An AgentRunner with run(task), resume(run_id) and status(run_id), in less than 60 lines with its graph.

The graph is the usual agent loop: the model asks for a tool, the tool runs, until the model has its answer. Here the
tool fails in the middle, as tools do; ``run`` leaves the run where it stopped, ``status`` tells where that is, and
another runner, on the file opened anew, resumes it: the steps that had finished are not done again.

To use a real model, let ``think`` call one: ``init_chat_model("openai:gpt-5-mini").bind_tools([...])``.
"""

import argparse
import operator
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NamedTuple, TypedDict
from uuid import uuid4

from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph

from langgraph_sqlite_ckpt import SqliteSaver

Tool = Callable[[str], str]


class State(TypedDict):
    task: str
    todo: list[str]
    results: Annotated[list[str], operator.add]


class Status(NamedTuple):
    step: int
    next: tuple[str, ...]
    error: str | None
    results: list[str]


class AgentRunner:
    """Runs an agent so that every run can be found by its id and resumed, by this process or by another."""

    def __init__(self, saver: SqliteSaver, tool: Tool) -> None:
        def think(state: State) -> dict[str, list[str]]:
            words = state["task"].split()
            return {"todo": words[len(state["results"]) :]}

        def act(state: State) -> dict[str, list[str]]:
            return {"results": [tool(state["todo"][0])]}

        def after_think(state: State) -> str:
            return "act" if state["todo"] else END

        builder = StateGraph(State).add_node("think", think).add_node("act", act)
        builder.add_edge(START, "think").add_edge("act", "think")
        builder.add_conditional_edges("think", after_think, ["act", END])
        self._graph = builder.compile(checkpointer=saver)

    def run(self, task: str) -> str:
        """Start a run and return its id. Where a step raised, the run stops before that step: see `status`."""
        run_id = uuid4().hex
        try:
            self._graph.invoke({"task": task, "todo": [], "results": []}, self._config(run_id))
        except Exception:
            if not self.status(run_id).error:
                raise  # no step's error: those are kept with the run
        return run_id

    def resume(self, run_id: str) -> Status:
        """Go on with a run that failed, or whose process died, after its last finished step."""
        self._graph.invoke(None, self._config(run_id))
        return self.status(run_id)

    def status(self, run_id: str) -> Status:
        state = self._graph.get_state(self._config(run_id))
        if state.metadata is None:
            raise LookupError(f"no run {run_id!r} in this file")
        error = next((str(task.error) for task in state.tasks if task.error), None)
        return Status(state.metadata["step"], state.next, error, state.values.get("results", []))

    def _config(self, run_id: str) -> RunnableConfig:
        return {"configurable": {"thread_id": run_id}, "metadata": {"run_id": run_id}}


def offline(word: str) -> str:
    """A tool that cannot do all that it is asked for."""
    if word == "gamma":
        raise ConnectionError("the network is down")
    return online(word)


def online(word: str) -> str:
    print(f"    tool called: {word}")
    return word.upper()


def show(status: Status) -> None:
    state = "done" if not status.next else f"failed before {status.next[0]!r}: {status.error}"
    print(f"    step {status.step}, {state}; results: {', '.join(status.results)}")


def demonstrate(db: Path) -> None:
    print("run('alpha beta gamma delta'), with a tool that fails on gamma")
    with SqliteSaver(db) as saver:
        runner = AgentRunner(saver, offline)
        run_id = runner.run("alpha beta gamma delta")
        print(f"status({run_id!r})")
        show(runner.status(run_id))

    print(f"resume({run_id!r}), the file opened anew, with the tool repaired")
    with SqliteSaver(db) as saver:
        show(AgentRunner(saver, online).resume(run_id))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--db", type=Path, help="keep the file here (default: a temporary folder)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        demonstrate(args.db or Path(folder) / "agent.db")


if __name__ == "__main__":
    main()
