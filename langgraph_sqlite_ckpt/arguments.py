"""Arguments in LangGraph's words, normalised in one place; what makes no sense is `InvalidRequest`, and says so."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint

from langgraph_sqlite_ckpt import listing
from langgraph_sqlite_ckpt.encoding import as_text
from langgraph_sqlite_ckpt.errors import InvalidRequest, Place


def configurable_of(config: RunnableConfig) -> Mapping[str, Any]:
    configurable = config.get("configurable") if isinstance(config, Mapping) else None
    if not isinstance(configurable, Mapping):
        raise InvalidRequest(f"a config is needed, {{'configurable': {{'thread_id': ...}}}}, not {config!r:.80}")
    return configurable


def address_of(config: RunnableConfig) -> tuple[Place, str | None]:
    """The thread and namespace, and the checkpoint id where there is one."""
    configurable = configurable_of(config)
    if configurable.get("thread_id") is None:
        raise InvalidRequest("config['configurable'] has no thread_id: it names the conversation or job to keep")
    return Place(thread_id_of(configurable["thread_id"]), namespace_of(configurable) or ""), checkpoint_id_of(configurable)


def scope_of(config: RunnableConfig | None) -> tuple[str | None, str | None, str | None]:
    if config is None:
        return None, None, None
    configurable = configurable_of(config)
    thread_id = configurable.get("thread_id")
    return (
        None if thread_id is None else thread_id_of(thread_id),
        namespace_of(configurable),
        checkpoint_id_of(configurable),
    )


def before_of(config: RunnableConfig | None) -> listing.Before | None:
    if config is None:
        return None
    thread_id, checkpoint_ns, checkpoint_id = scope_of(config)
    return listing.Before(checkpoint_id, thread_id, checkpoint_ns) if checkpoint_id else None


def namespace_of(configurable: Mapping[str, Any]) -> str | None:
    checkpoint_ns = configurable.get("checkpoint_ns")
    return None if checkpoint_ns is None else as_text("checkpoint_ns", checkpoint_ns)


def checkpoint_id_of(configurable: Mapping[str, Any]) -> str | None:
    checkpoint_id = configurable.get("checkpoint_id")
    return as_text("checkpoint_id", checkpoint_id) if checkpoint_id else None


def thread_id_of(value: object) -> str:
    return as_text("thread_id", value)


def channel_name(name: object) -> str:
    if not isinstance(name, str):
        raise InvalidRequest(f"channels are named by text, not by {name!r:.80}")
    return as_text("channel", name)


def require_limit(limit: object) -> None:
    if limit is None:
        return
    if not isinstance(limit, int):
        raise InvalidRequest(f"limit is a number of checkpoints, not {limit!r:.80}")
    if limit < 0:
        raise InvalidRequest(f"limit must not be negative: {limit}")


def several(name: str, values: Sequence[object]) -> Sequence[object]:
    if isinstance(values, (str, bytes)):
        raise InvalidRequest(f"{name} is a list of ids, not one: [{values!r}]")
    if not isinstance(values, Iterable):
        raise InvalidRequest(f"{name} is a list of ids, not {values!r:.80}")
    return tuple(values)


def require_versions(checkpoint: Checkpoint) -> None:
    """Channels and versions as LangGraph's contract has them; anything else would not be found again."""
    for versions in (checkpoint["channel_versions"], *checkpoint["versions_seen"].values()):
        for channel, version in versions.items():
            channel_name(channel)
            if isinstance(version, str):
                as_text("version", version)
            if type(version) not in (str, int, float) or (type(version) is float and not math.isfinite(version)):
                raise InvalidRequest(f"the version of channel {channel!r} is a str, int or float, not {version!r:.80}")


def still(value: Any) -> Any:
    """A join hands out the very set that it goes on changing: what is stored must be of one moment.

    It helps where LangGraph calls in time: with durability "async" it may call when a later step has changed it already.
    """
    if type(value) is set:
        return set(value)
    return (set(value[0]), *value[1:]) if type(value) is tuple and value and type(value[0]) is set else value
