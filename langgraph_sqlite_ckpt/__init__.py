"""A LangGraph checkpointer for agents whose runs must not be lost: one class, one SQLite file.

    from langgraph_sqlite_ckpt import SqliteSaver
    graph = builder.compile(checkpointer=SqliteSaver("agent.db"))

The command line (`cli`, loaded by `__main__` only) stands above all of this; its docstring lists its own modules.
To read the code, start at the top; imports point down this list only:

    server     the factory that LangGraph's server calls
    portable   one thread as one file, for bug reports and archives
    redaction  rows of which only the shape is left
    importing  threads out of the official savers' SQLite files
    foreign    every statement on the tables of those
    transfer   threads between any two savers
    saver      SqliteSaver: LangGraph's words on one side, operations and rows on the other
    arguments  those words, normalised and checked
    recovery   claim and recover: what a crash left unfinished goes on
    claims     one saver alone runs a thread
    confidential  what of a config is not stored
    shared     what a saver's copies have in common: the file, and all that goes with it
    aio        the async contract: whole operations shipped to another thread
    once       what a task does outside, not repeated by a resume
    effects    the entries of it: begun, done, in doubt
    upkeep     what people ask of a file: threads, runs, stats, verify, sweep, compact
    rekeying   every row sealed with the key of today
    upgrading  stored states brought up to date, with a write or all of them
    backup     a copy of a file while it is used, and back again
    sweeping   idle threads and old checkpoints, in short transactions
    verification  every row is what was written
    overview   threads, runs and sizes, without reading a value
    listing    config + filter + before + limit -> pages of checkpoints
    buffer     what a graph puts may wait in memory, and goes to disk together
    keeper     who looks after a buffer between two calls, and at exit
    flush      how often to save: the policy, and what never waits
    writing    put and put_writes as operations
    retention  delete, prune, copy: what stays always loads
    history    the ancestor walk for DeltaChannel
    reading    rows -> LangGraph's tuples
    renaming   what LangGraph calls a task whose node was renamed
    runs       which run a checkpoint belongs to, what is due next
    encoding   a checkpoint taken apart for the file
    migrations older states in today's shape
    custody    who answers for a thread: owners, claims
    database   connections, transactions, group commit, forks
    wholefile  a file as a whole: copied, or held alone
    events     what was done, told to a hook: for metrics
    operations a write as an object, and its outcome; whose turn it is
    liveness   whether a process is still there
    mounts     is it on a network file system
    file       its path, its marks, and why it cannot be opened
    schema     the steps that build the file, the views people read
    blobs      a value as bytes: against an earlier version of itself
    splice     two versions that differ in one place
    zstandard  zstd, in the few calls that we need
    tables     every SQL statement
    sealing    rows as the file has them where it is encrypted
    keys       keys, and the one cipher
    opaque     values without anybody's classes: to move them, and to look at them
    serde      safe decoding
    errors     every error, drawn once
"""

from langgraph_sqlite_ckpt.backup import restore
from langgraph_sqlite_ckpt.claims import Claim
from langgraph_sqlite_ckpt.effects import Effect
from langgraph_sqlite_ckpt.errors import (
    BusyError,
    CheckpointError,
    ClosedError,
    CopyError,
    DamagedError,
    DecodeError,
    DiskFullError,
    EffectInDoubt,
    EffectNotDone,
    EffectRunning,
    EncodeError,
    ForeignFileError,
    InvalidRequest,
    KeyNeeded,
    MigrationError,
    NewerFileError,
    NewerStateError,
    OpenError,
    PortableFileError,
    ReadOnlyError,
    StorageError,
    ThreadBusy,
)
from langgraph_sqlite_ckpt.events import Event
from langgraph_sqlite_ckpt.flush import Flush
from langgraph_sqlite_ckpt.importing import import_file
from langgraph_sqlite_ckpt.keys import read_key
from langgraph_sqlite_ckpt.migrations import rename_channel, rename_node
from langgraph_sqlite_ckpt.overview import Run, Size, Stats, Thread
from langgraph_sqlite_ckpt.portable import Exported, export_thread, load_thread
from langgraph_sqlite_ckpt.recovery import Recovered
from langgraph_sqlite_ckpt.rekeying import Rekeyed
from langgraph_sqlite_ckpt.saver import SqliteSaver
from langgraph_sqlite_ckpt.serde import SafeSerializer
from langgraph_sqlite_ckpt.sweeping import Swept
from langgraph_sqlite_ckpt.transfer import Copied, acopy_threads, copy_threads
from langgraph_sqlite_ckpt.upgrading import Migrated
from langgraph_sqlite_ckpt.verification import Problem

AsyncSqliteSaver = SqliteSaver
"""A second name for the same class: changing the import line is the whole migration."""

__version__ = "0.1.0"

__all__ = [
    "AsyncSqliteSaver",
    "BusyError",
    "CheckpointError",
    "Claim",
    "ClosedError",
    "Copied",
    "CopyError",
    "DamagedError",
    "DecodeError",
    "DiskFullError",
    "Effect",
    "EffectInDoubt",
    "EffectNotDone",
    "EffectRunning",
    "EncodeError",
    "Event",
    "Exported",
    "Flush",
    "ForeignFileError",
    "InvalidRequest",
    "KeyNeeded",
    "Migrated",
    "MigrationError",
    "NewerFileError",
    "NewerStateError",
    "OpenError",
    "PortableFileError",
    "Problem",
    "ReadOnlyError",
    "Recovered",
    "Rekeyed",
    "Run",
    "SafeSerializer",
    "Size",
    "SqliteSaver",
    "Stats",
    "StorageError",
    "Swept",
    "Thread",
    "ThreadBusy",
    "acopy_threads",
    "copy_threads",
    "export_thread",
    "import_file",
    "load_thread",
    "read_key",
    "rename_channel",
    "rename_node",
    "restore",
]
