"""For LangGraph's server: threads and runs in one SQLite file, in the place of the checkpointer that it brings along.

In `langgraph.json`:

    "checkpointer": {"path": "langgraph_sqlite_ckpt.server.checkpointer"}

The file is named by the environment variable LANGGRAPH_SQLITE_CKPT, `agent.db` in the working directory by default; files
with its keys, the one to write with first, by LANGGRAPH_SQLITE_CKPT_KEY_FILE (`new.key:old.key`).
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from langgraph_sqlite_ckpt.keys import keys_of_files
from langgraph_sqlite_ckpt.saver import SqliteSaver

VARIABLE = "LANGGRAPH_SQLITE_CKPT"
KEYS_VARIABLE = "LANGGRAPH_SQLITE_CKPT_KEY_FILE"


@asynccontextmanager
async def checkpointer() -> AsyncIterator[SqliteSaver]:
    """The server enters it once in each of its threads: these savers share the file, as any number of them may."""
    named = os.environ.get(KEYS_VARIABLE) or ""
    keys = keys_of_files([path for path in named.split(os.pathsep) if path])
    async with SqliteSaver(os.environ.get(VARIABLE) or "agent.db", keys=keys) as saver:
        yield saver
