"""Secrets that LangGraph would copy from a config into the metadata stay out of the file."""

from pathlib import Path
from typing import Any, TypedDict

import pytest
from conftest import Face, checkpoint
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph

from langgraph_sqlite_ckpt import SqliteSaver

SECRETS = [
    "api_key",
    "openai_api_key",
    "OPENAI_API_KEY",
    "apikey",
    "x-api-key",
    "token",
    "access_token",
    "GitHubToken",
    "client_secret",
    "password",
    "db_password_2",
    "Authorization",
]
HARMLESS: dict[str, Any] = {
    "user_id": "u1",
    "model": "gpt",
    "max_tokens": 1000,
    "token_limit": 0.5,
    "stream_tokens": True,
    "keyboard": "qwerty",
    "author": "me",
    "passenger": "sk-hidden",
}
VALUE = "sk-hidden-0123456789"


def stored(face: Any, configurable: dict[str, Any], metadata: Any = None, run: Any = None) -> Any:
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": "", **configurable}}
    if run is not None:
        config["metadata"] = run
    face.put(config, checkpoint(), {"source": "loop", "step": 1, **(metadata or {})}, {})
    return face.get_tuple({"configurable": {"thread_id": "t"}}).metadata


def bytes_of(path: Path) -> bytes:
    return b"".join(Path(f"{path}{end}").read_bytes() for end in ("", "-wal"))


@pytest.mark.parametrize("key", SECRETS)
def test_what_is_named_like_a_secret_is_not_copied_from_configurable(face: Face, path: Path, key: str) -> None:
    assert stored(face, {key: VALUE, "user_id": "u1"}) == {
        "source": "loop",
        "step": 1,
        "user_id": "u1",
        "thread_id": "t",
    } or (stored(face, {key: VALUE, "user_id": "u1"}) == {"source": "loop", "step": 1, "user_id": "u1"})
    assert VALUE.encode() not in bytes_of(path)


def test_everything_else_is_copied_as_langgraph_does(face: Face) -> None:
    assert stored(face, HARMLESS).items() >= HARMLESS.items()


def test_a_password_of_digits_is_a_secret_too(face: Face) -> None:
    assert "password" not in stored(face, {"password": 123456})


def test_what_the_user_gave_as_metadata_of_the_run_is_stored(face: Face) -> None:
    given = {"token": "ticket 17", "ticket_tokens": 3}
    assert stored(face, {"token": VALUE}, run=given).items() >= given.items()
    assert stored(face, {}, run=given).items() >= given.items()
    assert stored(face, {"token": VALUE}, metadata=given).items() >= given.items()


def test_a_copy_that_langchain_made_of_it_is_not_stored(face: Face, path: Path) -> None:
    found = stored(face, {"api_key": VALUE, "token": "a\0b"}, run={"api_key": VALUE, "token": "a\0b", "user_id": "u1"})
    assert found.keys().isdisjoint({"api_key", "token"})
    assert found["user_id"] == "u1"
    assert VALUE.encode() not in bytes_of(path)


def test_who_asks_for_it_gets_them_stored(open_face: Any) -> None:
    face = open_face(keep_secrets=True)
    assert stored(face, {"api_key": VALUE})["api_key"] == VALUE
    clone = face.saver.with_allowlist([("a", "B")])
    assert stored(clone, {"other_token": VALUE})["other_token"] == VALUE


def test_the_callers_config_is_left_alone(face: Face) -> None:
    config: Any = {
        "configurable": {"thread_id": "t", "checkpoint_ns": "", "api_key": VALUE},
        "metadata": {"api_key": VALUE},
    }
    face.put(config, checkpoint(), {}, {})
    assert config == {
        "configurable": {"thread_id": "t", "checkpoint_ns": "", "api_key": VALUE},
        "metadata": {"api_key": VALUE},
    }


class State(TypedDict):
    seen: str


def test_a_graph_gets_its_key_and_the_file_does_not(saver: SqliteSaver, path: Path) -> None:
    seen: list[str] = []

    def node(state: State, config: RunnableConfig) -> State:
        seen.append(config["configurable"]["openai_api_key"])
        return {"seen": "yes"}

    inner = StateGraph(State)
    inner.add_node("node", node)
    inner.add_edge(START, "node")
    inner.add_edge("node", END)
    builder = StateGraph(State)
    builder.add_node("outer", node)
    builder.add_node("sub", inner.compile(checkpointer=True))
    builder.add_edge(START, "outer")
    builder.add_edge("outer", "sub")
    graph = builder.compile(checkpointer=saver)
    config: Any = {"configurable": {"thread_id": "t", "openai_api_key": VALUE, "user_id": "u1"}, "metadata": {"team": "a"}}
    graph.invoke({"seen": ""}, config)
    graph.update_state(config, {"seen": "by hand"}, as_node="sub")
    assert seen == [VALUE, VALUE]
    items = list(saver.list(None))
    assert {item.metadata["user_id"] for item in items} == {"u1"}
    assert {item.metadata["team"] for item in items} == {"a"}
    assert len({item.config["configurable"]["checkpoint_ns"] for item in items}) == 2
    assert VALUE.encode() not in bytes_of(path)
