"""A LangGraph checkpointer for agents whose runs must not be lost: one class, one SQLite file.

    from langgraph_sqlite_ckpt import SqliteSaver
    graph = builder.compile(checkpointer=SqliteSaver("agent.db"))

To read the code, start at the top; imports point down this list only:

    saver      SqliteSaver: LangGraph's words, arguments checked
    aio        the async contract: whole operations shipped to another thread
    listing    config + filter + before + limit -> pages of checkpoints
    retention  delete, prune, copy: what stays always loads
    history    the ancestor walk for DeltaChannel
    writing    put and put_writes as operations
    reading    rows -> LangGraph's tuples
    runs       which run a checkpoint belongs to, what is due next
    encoding   a checkpoint taken apart for the file
    database   connections, transactions, group commit, forks
    operations a write as an object, and its outcome
    file       its path, its marks, and why it cannot be opened
    schema     the steps that build the file, the views people read
    blobs      a value as bytes: against an earlier version of itself
    splice     two versions that differ in one place
    zstandard  zstd, in the two calls that we need
    tables     every SQL statement
    serde      safe decoding
    errors     every error, drawn once
"""

from langgraph_sqlite_ckpt.errors import (
    BusyError,
    CheckpointError,
    ClosedError,
    DamagedError,
    DecodeError,
    DiskFullError,
    EncodeError,
    ForeignFileError,
    InvalidRequest,
    NewerFileError,
    OpenError,
    ReadOnlyError,
    StorageError,
)
from langgraph_sqlite_ckpt.saver import SqliteSaver
from langgraph_sqlite_ckpt.serde import SafeSerializer

AsyncSqliteSaver = SqliteSaver
"""A second name for the same class: changing the import line is the whole migration."""

__version__ = "0.1.0"

__all__ = [
    "AsyncSqliteSaver",
    "BusyError",
    "CheckpointError",
    "ClosedError",
    "DamagedError",
    "DecodeError",
    "DiskFullError",
    "EncodeError",
    "ForeignFileError",
    "InvalidRequest",
    "NewerFileError",
    "OpenError",
    "ReadOnlyError",
    "SafeSerializer",
    "SqliteSaver",
    "StorageError",
]
