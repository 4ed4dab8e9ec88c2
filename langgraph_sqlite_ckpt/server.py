"""For LangGraph's server: threads and runs in one SQLite file, in the place of the checkpointer that it brings along.

In `langgraph.json`:

    "checkpointer": {"path": "langgraph_sqlite_ckpt.server.checkpointer"}

The file is named by the environment variable LANGGRAPH_SQLITE_CKPT, `agent.db` in the working directory by default.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from langgraph_sqlite_ckpt.saver import SqliteSaver

VARIABLE = "LANGGRAPH_SQLITE_CKPT"


@asynccontextmanager
async def checkpointer() -> AsyncIterator[SqliteSaver]:
    """The server enters it once in each of its threads: these savers share the file, as any number of them may."""
    async with SqliteSaver(os.environ.get(VARIABLE) or "agent.db") as saver:
        yield saver
