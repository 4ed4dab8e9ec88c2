"""Every example runs as a user runs it, in a process of its own, and prints what it promises."""

import functools
import importlib.util
import inspect
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
SECONDS = 120

pytestmark = pytest.mark.timeout(SECONDS + 30)


def start(name: str, *args: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-W", "always::ResourceWarning", str(EXAMPLES / name), *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)


@functools.cache
def run(name: str, *args: str) -> str:
    """Run an example; return what it printed, after checking that it ended well and complained of nothing."""
    done = start(name, *args)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not re.search("Traceback|ResourceWarning|Exception ignored", done.stderr), done.stderr
    return done.stdout


def load(name: str) -> ModuleType:
    """Import an example without running it."""
    spec = importlib.util.spec_from_file_location(f"examples_{name}", EXAMPLES / f"{name}.py")
    assert spec
    assert spec.loader
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def in_order(text: str, *pieces: str) -> bool:
    """Do the pieces stand in the text, one after the other?"""
    return re.search(".*?".join(map(re.escape, pieces)), text, re.DOTALL) is not None


# crash_resume


@pytest.mark.parametrize("face", ["sync", "async"])
@pytest.mark.parametrize("at", [3, 5, 8])
def test_an_agent_killed_in_a_step_resumes_to_the_state_of_an_undisturbed_one(at: int, face: str) -> None:
    flags = ["--async"] if face == "async" else []
    call = "ainvoke" if face == "async" else "invoke"
    out = run("crash_resume.py", "--at", str(at), *flags)
    before = " ".join(str(step) if step <= at else "." for step in range(1, 11))
    after = " ".join(str(step) if step >= at else "." for step in range(1, 11))
    assert in_order(out, f"process 1    steps {before}", f"{call}(task, config)", f"in step {at}, exit code")
    assert f"the file     has the state after step {at - 1}; next: {'think' if at == 8 else 'act'}" in out
    assert in_order(out, f"process 2    steps {after}", f"{call}(None, config): exit code 0")
    for field in ("task", "messages", "findings", "tokens", "step"):
        assert re.search(rf"^{field} .* same$", out, re.MULTILINE), out
    assert "DIFFERS" not in out
    assert "finished steps that ran twice: none\n" in out
    assert out.endswith("PASS: the resumed agent ended exactly as the undisturbed one.\n")


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="Windows has no SIGKILL")
def test_the_agent_is_really_killed_by_sigkill(tmp_path: Path) -> None:
    example = load("crash_resume")
    out = run("crash_resume.py", "--db", str(tmp_path / "agent.db"))
    assert f"SIGKILL in step 5, exit code {-signal.SIGKILL}\n" in out
    ledger = (tmp_path / "agent.db.ledger").read_text().splitlines()
    killed = [line.split()[1:] for line in ledger if line.startswith("killed-")]
    assert killed.count(["begin", "5"]) == 2
    assert killed.count(["end", "5"]) == 1
    assert all(killed.count([kind, str(step)]) == 1 for kind in ("begin", "end") for step in (4, 6))
    assert example.STEPS == 10


@pytest.mark.parametrize("durability", ["async", "exit"])
def test_a_weaker_durability_may_repeat_steps_but_ends_in_the_same_state(durability: str) -> None:
    out = run("crash_resume.py", "--at", "8", "--durability", durability)
    assert "DIFFERS" not in out
    assert "PASS" in out
    if durability == "exit":
        assert "the file     knows nothing" in out
        assert "finished steps that ran twice: 1, 2, 3, 4, 5, 6, 7\n" in out


def test_the_comparison_sees_a_field_that_differs_and_one_that_is_missing() -> None:
    rows = load("crash_resume").compare({"step": 10, "tokens": 7, "task": "x"}, {"step": 10, "tokens": 8})
    assert [(row.field, row.same) for row in rows] == [("step", True), ("tokens", False), ("task", False)]


def test_a_finished_step_that_ran_twice_fails_only_under_the_durability_that_promises_it_does_not() -> None:
    example = load("crash_resume")
    log = [example.Event("t", kind, step) for kind, step in [("begin", 1), ("end", 1), ("begin", 1), ("end", 1)]]
    job = example.Job(Path("agent.db"), "t")
    assert example.repeated(log) == [1]
    assert not example.as_promised(job, example.repeated(log))
    assert example.as_promised(job._replace(durability="async"), example.repeated(log))


def test_a_step_that_was_cut_off_and_begun_again_is_not_a_repeated_one() -> None:
    example = load("crash_resume")
    log = [example.Event("t", kind, step) for kind, step in [("begin", 1), ("begin", 1), ("end", 1)]]
    assert example.repeated(log) == []


def test_a_step_that_the_agent_does_not_have_is_refused() -> None:
    done = start("crash_resume.py", "--at", "11")
    assert done.returncode == 2
    assert "the agent has the steps 1 to 10" in done.stderr


# agent_runner


def test_an_agent_runner_resumes_a_failed_run_without_repeating_what_was_done() -> None:
    out = run("agent_runner.py")
    assert in_order(out, "failed before 'act': ConnectionError('the network is down'); results: ALPHA, BETA\nresume(")
    assert out.endswith("done; results: ALPHA, BETA, GAMMA, DELTA\n")
    assert [out.count(f"tool called: {word}\n") for word in ("alpha", "beta", "gamma", "delta")] == [1, 1, 1, 1]


def test_the_agent_runner_and_its_graph_take_less_than_60_lines() -> None:
    example = load("agent_runner")
    parts = (example.State, example.Status, example.AgentRunner)
    assert sum(len(inspect.getsource(part).splitlines()) for part in parts) < 60


# human_in_the_loop


def test_another_process_approves_edits_and_rejects_what_waits() -> None:
    out = run("human_in_the_loop.py")
    assert "started 4 agents and ended (exit code 0)" in out
    assert re.search(r"invoice-1  approve +-> paid 100 to Alice\n", out)
    assert re.search(r"invoice-2  edit: 200 is due +-> paid 200 to Bob\n", out)
    assert re.search(r"invoice-3  reject +-> did not pay Mallory: we do not know them\n", out)


def test_two_interrupts_of_one_step_are_answered_by_id_one_after_the_other() -> None:
    out = run("human_in_the_loop.py")
    assert in_order(out, "waiting for a person: 5\n", "invoice-4", "pay Carol", "invoice-4", "pay Dave")
    assert re.search(r"invoice-4  approve \w{8} +-> 1 still waits\n\nwaiting for a person: 1\n", out)
    assert re.search(r"invoice-4  reject \w{8} +-> paid 40 to Carol, did not pay Dave: paid last week\n", out)
    assert out.endswith("waiting for a person: 0\n")


def test_the_human_example_leaves_a_file_alone_that_is_there_already(tmp_path: Path) -> None:
    (tmp_path / "agent.db").touch()
    done = start("human_in_the_loop.py", "--db", str(tmp_path / "agent.db"))
    assert done.returncode == 2
    assert "is there already" in done.stderr


# time_travel


def test_a_branch_from_an_earlier_step_leaves_the_first_end_in_place() -> None:
    out = run("time_travel.py")
    assert in_order(out, "the run: 5", "both branches: 8 checkpoints", "+- step  2  loop", "+- step  2  update")
    assert "the first end, by its id: Python, the snake, has no venom" in out
    assert "the thread now          : Python, the language, has generators" in out


# tool_agent


@pytest.mark.skipif(sys.version_info < (3, 11), reason="LangGraph interrupts async code from Python 3.11 on only")
def test_a_tool_agent_goes_on_in_another_process_with_its_whole_conversation() -> None:
    out = run("tool_agent.py")
    first, second = out.split("process 1 has ended (exit code 0)")
    assert "the agent waits for a person\n" in first
    assert "euros sent back" not in first
    assert in_order(second, "a person allows refund", "tool   40 euros sent back for A-17", "the whole conversation")
    conversation = second.split("the whole conversation, read from the file\n")[1]
    speakers = [line.split()[0] for line in conversation.splitlines()]
    assert speakers == ["human", "ai", "tool", "ai", "tool", "ai", "human", "ai"]
    assert conversation.endswith("It was order A-17.\n")


# send_email


@pytest.mark.parametrize("flags", [(), ("--async",)], ids=["sync", "async"])
def test_an_agent_killed_at_any_point_of_sending_sends_one_mail(flags: tuple[str, ...]) -> None:
    out = run("send_email.py", *flags)
    assert len(re.findall(r"^killed ", out, re.MULTILINE)) == 6
    assert len(re.findall(r"exit codes -?\d+ and 0; mails sent: 1; receipt \w{8}\n", out)) == 6
    assert out.count("did not send a mail of that key") == 2
    assert out.count("it sent a mail of that key") == 2
    assert out.endswith("PASS: one mail each time.\n")


# many_agents


def test_agents_in_processes_threads_and_coroutines_share_one_file_and_lose_nothing() -> None:
    out = run("many_agents.py")
    assert out.count("exit code 0  7 agents, 7 as expected\n") == 4
    assert "28 of 28 agents ended as expected, with each step saved once\n" in out
    assert re.search(r"560 steps in [\d.]+ s: [1-9]\d* steps/s\n", out)


# schema_evolution


def test_a_thread_of_an_older_release_ends_like_one_of_the_newer_release() -> None:
    out = run("schema_evolution.py")
    first, second, third, rest = re.split(r"\[process \d+ ended with exit code 0\]\n", out)
    assert "report-1 waits in 'act'" in first
    assert "tool_calls" not in first
    assert in_order(
        second, "report-1 waits in 'use_tools'", "messages", "tool_calls", "version     2", "May I send the report?"
    )
    assert in_order(second, "answered", "the person said: yes", "{'tool': 'send', 'argument': 'report'}")
    assert "ends with the same\n" in second
    assert re.search(
        r"would rewrite (\d+) checkpoints \(errors: 0\), rewrote \1, then 0; problems in the file: 0\n", second
    )
    assert "refused: its states are at version 3, and this program's migrations go up to 0" in third
    assert not rest.strip()


# supervisor


def test_a_worker_pool_that_is_killed_again_and_again_finishes_every_run() -> None:
    out = run("supervisor.py", "--kills", "3")
    assert "worker 3 killed; in flight: job-" in out
    assert re.search(r"job-\d recovered: completed\n", out)
    assert "3 workers killed, all jobs finished" in out
    assert out.endswith("states equal those of undisturbed runs, every step is there once: yes\nPASS\n")


# frequency


def test_each_policy_shows_what_it_costs_and_what_a_kill_loses() -> None:
    out = run("frequency.py")
    lost = {name: int(steps) for name, steps in re.findall(r"^(\S.*?) {2,}.* (\d+) steps$", out, re.MULTILINE)}
    timed = lost.pop("seconds=0.1")
    assert lost == {
        "every step": 0,
        "steps=5": 3,
        "steps=20": 18,
        "nodes={'pay'}": 17,
        "steps=5, nodes={'pay'}": 2,
    }
    assert 0 <= timed <= 57
    commits = {name: int(count) for name, count in re.findall(r"^(\S.*?) {2,}\d+ +(\d+) +\d+ kB +102 ", out, re.MULTILINE)}
    assert commits.keys() == {*lost, "seconds=0.1"}
    assert max(commits["steps=5"], commits["nodes={'pay'}"]) * 3 < commits["every step"]
    assert len(set(re.findall(r"(\d+) kB", out))) == 1


# opentelemetry_metrics


def test_a_collector_gets_times_bytes_and_errors_of_each_operation() -> None:
    pytest.importorskip("opentelemetry.sdk.metrics")
    out = run("opentelemetry_metrics.py")
    assert "9 agents of 5 steps have ended\none could not save: " in out
    rows = {
        match[:2]: match[2:] for match in re.findall(r"^(\w+) +(BusyError|) +(\d+) +([\d.]+) ms +(\d*)$", out, re.MULTILINE)
    }
    assert rows["put", ""][0] == "63"  # nine agents of an input and six checkpoints
    assert int(rows["put", ""][2]) > 1000
    assert int(rows["put_writes", "BusyError"][0]) + int(rows["put", "BusyError"][0]) > 0
    operations, commits = map(int, re.findall(r"^(\d+) operations in (\d+) commits$", out, re.MULTILINE)[0])
    assert operations == 63 + int(rows["put_writes", ""][0])
    assert commits < operations


# all of them


@pytest.mark.parametrize("name", ["agent_runner", "time_travel"])
def test_an_example_leaves_its_file_where_it_is_told_to_and_can_run_on_it_again(name: str, tmp_path: Path) -> None:
    for _ in range(2):
        assert start(f"{name}.py", "--db", str(tmp_path / "kept.db")).returncode == 0
    assert (tmp_path / "kept.db").stat().st_size > 0


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_every_example_says_what_it_shows_and_where_a_real_model_goes(path: Path) -> None:
    text = path.read_text()
    assert text.startswith('"""')
    assert "To use a real model, " in text.split('"""')[1]
