"""What of a config stays out of the stored metadata.

LangGraph copies every scalar of `config["configurable"]` into the metadata of each checkpoint, and the API key that a graph
was given there with it: into the file, its backups, and every listing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointMetadata, get_checkpoint_metadata

_SECRET = re.compile(r"api[-_ ]?key|secret|password|authorization|token", re.IGNORECASE)
_COUNT = re.compile(r"token", re.IGNORECASE)  # max_tokens=1000 hides nothing


def merged_metadata(config: RunnableConfig, metadata: CheckpointMetadata, *, keep_secrets: bool) -> dict[str, Any]:
    """The metadata with what LangGraph adds to it of the config, without what looks like a secret there.

    What a user puts under `config["metadata"]` was put there to be stored, and is; unless it is a copy, as LangChain makes
    them, of the entry of that name in `configurable`.
    """
    merged: dict[str, Any] = dict(get_checkpoint_metadata(config, metadata))
    if not keep_secrets:
        for key, value in _secrets(config):
            if key in merged and merged[key] == value:
                del merged[key]
    return merged


def _secrets(config: RunnableConfig) -> list[tuple[str, Any]]:
    configurable: Mapping[str, Any] = config.get("configurable") or {}
    return [(key, _as_merged(value)) for key, value in configurable.items() if _looks_secret(key, value)]


def _looks_secret(key: object, value: object) -> bool:
    """By its name. A number is none where it counts tokens."""
    if not isinstance(key, str) or not isinstance(value, (str, int, float)):
        return False
    return bool(_SECRET.search(_COUNT.sub("", key) if not isinstance(value, str) else key))


def _as_merged(value: object) -> object:
    return value.replace("\0", "") if isinstance(value, str) else value
