"""What the README says is run."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from langgraph.graph import END, START, StateGraph

from langgraph_sqlite_ckpt import SqliteSaver

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_python_block_of_the_readme_runs_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", README, re.S | re.M)
    names: dict[str, object] = {"__name__": "readme"}
    exec(compile("\n".join(blocks), "README.md", "exec"), names)
    printed = capsys.readouterr().out
    assert len(blocks) >= 5
    assert "{'steps': 10}" in printed
    assert "invoice-7 waits before ('pay',)" in printed
    assert "{'steps': 1}" in printed


def test_the_readmes_query_shows_what_it_says(tmp_path: Path):
    path = tmp_path / "agent.db"
    builder = StateGraph(dict)
    builder.add_node("work", lambda state: {"steps": state["steps"] + 1})
    builder.add_edge(START, "work")
    builder.add_conditional_edges("work", lambda state: END if state["steps"] >= 3 else "work")
    with SqliteSaver(path) as saver:
        builder.compile(checkpointer=saver).invoke({"steps": 0}, {"configurable": {"thread_id": "1"}})
    with closing(sqlite3.connect(path)) as db:
        rows = db.execute("SELECT run_id, step, status FROM checkpoints").fetchall()
    assert [status for _, _, status in rows] == ["running"] * (len(rows) - 1) + ["completed"]
    assert len({run_id for run_id, _, _ in rows}) == 1
    assert [step for _, step, _ in rows] == list(range(-1, len(rows) - 1))


def test_ci_runs_the_readmes_test_command():
    [command] = [line.strip() for line in README.splitlines() if line.startswith("    ") and "-m pytest" in line]
    assert command in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()


def test_every_example_is_named_in_the_readme():
    for example in (ROOT / "examples").glob("*.py"):
        assert example.name in README
