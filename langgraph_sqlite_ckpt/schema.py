"""The file's layout: the steps that build it, its marks, and the views that people read.

Tables are named in the singular and are ours; the plural views `checkpoints`, `runs` and `threads` are for people
(`sqlite3 agent.db "SELECT run_id, step, status FROM checkpoints"`) and keep their columns.

A shipped step is never edited: append one. Each is committed together with its number (see `database.py`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

APPLICATION_ID = 0x4C474350  # "LGCP", in the header of every file of ours
SILENCE = 60  # seconds without a heartbeat after which an owner that nobody can look at counts as gone

# Why these columns:
# - checkpoint.seq is the order of commits; latest and history mean this order, not the greatest id. (No AUTOINCREMENT: it
#   costs a page in every commit, and only matters after the newest row of all was deleted, when order is safe without.)
# - checkpoint.body is the checkpoint without its values, rest what only the serializer can store of it; beside names the
#   channels whose values are in the rest.
# - blob holds a value once per (namespace, channel, version). base is the blob that it was compressed against, position
#   its place in that chain. A row without a version is only kept as a base. Ids are never reused: a cached base stays true.
# - state_version is how many migrations a checkpoint, or a value, has been through. A migrated value is stored beside the
#   old one under the same version: a checkpoint at state version s means the blob with the greatest one up to s.
# - write has no foreign key: a task's writes may arrive before their checkpoint. id grows with every write, so an
#   interrupt that was answered is older than its answer.
# - checkpoint.hidden: it was pruned, and is only kept for what the DeltaChannels of others need of it. Of what its own need
#   some may be gone, so nobody is shown it. The indexes end with it, so that those that are shown are found, and counted,
#   without a look at the others.
# - a subgraph's checkpoints may be stored before the root checkpoint that they belong to; until it comes its id stands for
#   their run.
# - checkpoint_by_source_anywhere is for listings of the whole file; as an expression it is out of the way of others.
# - owner is a saver that wrote (see `liveness.py`), ended how its time ended: 'closed' or 'gone'. custody says who answers
#   for a thread: whoever wrote to it last (0: nobody), or has claimed it: holder, with the number of the claim. attempts is
#   how often `recover` went on from mark (where the thread stood then).
# - effect is what a task does outside (see `effects.py`): begun before it is called, finished after it, in doubt where an
#   error stands or its owner is gone. call numbers the attempt that may finish it. key is what the outside was called with:
#   not unique, as the entries of a thread's copy stand for the very same effects.
# - codec tells how bytes were packed, size how many they were before, key_id (null: not encrypted) with which key;
#   checksum is the CRC-32 of the bytes as stored (of a checkpoint: metadata, exact, body, beside, rest); the unpacked bytes
#   are covered by zstd's own.
_TABLES = """
CREATE TABLE namespace (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    thread_id TEXT NOT NULL,
    checkpoint_ns TEXT NOT NULL,
    UNIQUE (thread_id, checkpoint_ns)
);
CREATE TABLE checkpoint (
    seq INTEGER PRIMARY KEY,
    namespace INTEGER NOT NULL,
    checkpoint_id TEXT NOT NULL,
    parent_id TEXT,
    run_id TEXT NOT NULL,
    step NUMERIC,
    source TEXT,
    next TEXT NOT NULL,
    created_at TEXT NOT NULL,
    has_child INTEGER NOT NULL DEFAULT 0,
    hidden INTEGER NOT NULL DEFAULT 0,
    state_version INTEGER NOT NULL DEFAULT 0,
    metadata TEXT NOT NULL,
    exact_type TEXT,
    exact BLOB,
    body_codec INTEGER NOT NULL,
    body_size INTEGER NOT NULL,
    body BLOB NOT NULL,
    beside TEXT,
    rest_type TEXT,
    rest_codec INTEGER,
    rest_size INTEGER,
    rest BLOB,
    checksum INTEGER NOT NULL,
    key_id INTEGER,
    UNIQUE (namespace, checkpoint_id)
);
CREATE TRIGGER checkpoint_has_child AFTER INSERT ON checkpoint WHEN NEW.parent_id IS NOT NULL BEGIN
    UPDATE checkpoint SET has_child = 1 WHERE namespace = NEW.namespace AND checkpoint_id = NEW.parent_id AND NOT has_child;
END;
CREATE TRIGGER checkpoint_takes_what_came_before AFTER INSERT ON checkpoint WHEN NEW.run_id <> NEW.checkpoint_id BEGIN
    UPDATE checkpoint SET run_id = NEW.run_id WHERE run_id = NEW.checkpoint_id AND namespace IN (
        SELECT n.id FROM namespace n JOIN namespace own ON own.thread_id = n.thread_id WHERE own.id = NEW.namespace);
END;
CREATE INDEX checkpoint_by_namespace ON checkpoint (namespace, hidden);
CREATE INDEX checkpoint_by_run ON checkpoint (run_id, namespace, hidden);
CREATE INDEX checkpoint_by_step ON checkpoint (namespace, step, hidden);
CREATE INDEX checkpoint_by_source_anywhere ON checkpoint (source || '', hidden) WHERE source <> 'loop';
CREATE INDEX checkpoint_by_namespace_source ON checkpoint (namespace, source, hidden) WHERE source <> 'loop';
CREATE INDEX checkpoint_by_state_version ON checkpoint (state_version) WHERE state_version > 0;
CREATE TABLE blob (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace INTEGER NOT NULL,
    channel TEXT NOT NULL,
    version BLOB,
    type TEXT NOT NULL,
    codec INTEGER NOT NULL,
    base INTEGER,
    position INTEGER NOT NULL,
    size INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    key_id INTEGER,
    state_version INTEGER NOT NULL DEFAULT 0,
    data BLOB NOT NULL,
    UNIQUE (namespace, channel, version, state_version)
);
CREATE INDEX blob_by_base ON blob (base) WHERE base IS NOT NULL;
CREATE TABLE write (
    id INTEGER PRIMARY KEY,
    namespace INTEGER NOT NULL,
    checkpoint_id TEXT NOT NULL,
    task_id TEXT NOT NULL,
    idx INTEGER NOT NULL,
    task_path TEXT NOT NULL,
    channel TEXT NOT NULL,
    type TEXT NOT NULL,
    codec INTEGER NOT NULL,
    size INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    key_id INTEGER,
    data BLOB NOT NULL,
    UNIQUE (namespace, checkpoint_id, task_id, idx)
);
CREATE TABLE owner (
    id INTEGER PRIMARY KEY,
    host TEXT NOT NULL,
    boot TEXT NOT NULL,
    space TEXT NOT NULL,
    pid INTEGER NOT NULL,
    started TEXT NOT NULL,
    opened_at TEXT NOT NULL,
    beat_at TEXT NOT NULL,
    ended_at TEXT,
    ended TEXT
);
CREATE INDEX owner_still_there ON owner (id) WHERE ended IS NULL;
CREATE TABLE custody (
    thread_id TEXT PRIMARY KEY,
    owner INTEGER NOT NULL,
    holder INTEGER,
    claim INTEGER,
    claimed_at TEXT,
    attempts INTEGER NOT NULL DEFAULT 0,
    mark TEXT,
    abandoned INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX custody_by_owner ON custody (owner);
CREATE INDEX custody_by_holder ON custody (holder) WHERE holder IS NOT NULL;
CREATE TABLE effect (
    id INTEGER PRIMARY KEY,
    namespace INTEGER NOT NULL,
    checkpoint_id TEXT NOT NULL,
    task_id TEXT NOT NULL,
    name TEXT NOT NULL,
    node TEXT NOT NULL,
    key TEXT NOT NULL,
    owner INTEGER NOT NULL,
    call INTEGER NOT NULL,
    started_at TEXT NOT NULL,
    finished_at TEXT,
    error TEXT,
    type TEXT,
    codec INTEGER,
    size INTEGER,
    checksum INTEGER,
    key_id INTEGER,
    data BLOB,
    UNIQUE (namespace, checkpoint_id, task_id, name)
);
CREATE INDEX effect_by_key ON effect (key);
"""

# An interrupt waits until its own task writes something after it, or somebody a resume for whichever task waits. (LangGraph
# stores a task's second question together with the answer to its first: a task's own resume is no answer.) An error stands
# until its task writes again. Whether an owner is alive only a process can find out: until one has written that it is gone,
# its silence tells (`threads()` and `runs()` look for themselves). A run that another one has left behind has stopped.
_VIEWS = f"""
CREATE VIEW checkpoints AS
SELECT c.run_id, n.thread_id, n.checkpoint_ns, c.checkpoint_id,
    nullif(c.parent_id, (SELECT p.checkpoint_id FROM checkpoint p
        WHERE p.namespace = c.namespace AND p.checkpoint_id = c.parent_id AND p.hidden)) AS parent_checkpoint_id,
    c.step, c.source, c.next,
    CASE
        WHEN c.next = '[]' THEN 'completed'
        WHEN c.has_child THEN 'running'
        WHEN EXISTS (
            SELECT 1 FROM write w WHERE w.namespace = c.namespace AND w.checkpoint_id = c.checkpoint_id
            AND w.channel = '__interrupt__' AND NOT EXISTS (
                SELECT 1 FROM write later WHERE later.namespace = w.namespace AND later.checkpoint_id = w.checkpoint_id
                AND later.id > w.id AND ((later.task_id = w.task_id AND later.channel <> '__resume__')
                    OR (later.channel = '__resume__' AND later.task_id = '00000000-0000-0000-0000-000000000000')))
        ) THEN 'interrupted'
        WHEN EXISTS (
            SELECT 1 FROM write w WHERE w.namespace = c.namespace AND w.checkpoint_id = c.checkpoint_id
            AND w.channel = '__error__' AND NOT EXISTS (
                SELECT 1 FROM write later WHERE later.namespace = w.namespace AND later.checkpoint_id = w.checkpoint_id
                AND later.id > w.id AND later.task_id = w.task_id)
        ) THEN 'failed'
        ELSE coalesce((
            SELECT CASE
                WHEN h.abandoned THEN 'abandoned'
                WHEN o.ended = 'closed' THEN 'stopped'
                WHEN o.ended = 'gone' THEN 'crashed'
                WHEN o.beat_at < strftime('%Y-%m-%dT%H:%M:%f', 'now', '-{SILENCE} seconds') THEN 'crashed'
                ELSE 'running' END
            FROM custody h JOIN owner o ON o.id = coalesce(h.holder, h.owner) WHERE h.thread_id = n.thread_id), 'stopped')
    END AS status,
    c.created_at, c.metadata, c.seq
FROM checkpoint c JOIN namespace n ON n.id = c.namespace
WHERE c.hidden = 0;

CREATE VIEW runs AS
SELECT first.run_id, n.thread_id,
    CASE
        WHEN last.status IN ('running', 'crashed', 'abandoned')
            AND last.seq < (
                SELECT max(c.seq) FROM checkpoint c WHERE c.namespace = first.namespace AND c.hidden = 0) THEN 'stopped'
        ELSE last.status
    END AS status,
    last.next, last.step, first.created_at, last.created_at AS updated_at,
    (SELECT count(*) FROM checkpoint c
        WHERE c.run_id = first.run_id AND c.namespace = first.namespace AND c.hidden = 0) AS checkpoints,
    first.seq
FROM checkpoint first
JOIN namespace n ON n.id = first.namespace
JOIN checkpoints last ON last.seq = (
    SELECT max(c.seq) FROM checkpoint c
    WHERE c.run_id = first.run_id AND c.namespace = first.namespace AND c.hidden = 0)
WHERE n.checkpoint_ns = '' AND first.hidden = 0 AND NOT EXISTS (
    SELECT 1 FROM checkpoint c
    WHERE c.run_id = first.run_id AND c.namespace = first.namespace AND c.hidden = 0 AND c.seq < first.seq);

CREATE VIEW threads AS
SELECT n.thread_id, last.status, last.next, last.step, last.run_id, first.created_at, last.created_at AS updated_at,
    (SELECT count(*) FROM checkpoint c WHERE c.namespace = n.id AND c.hidden = 0) AS checkpoints
FROM namespace n
JOIN checkpoints last ON last.seq = (SELECT max(c.seq) FROM checkpoint c WHERE c.namespace = n.id AND c.hidden = 0)
JOIN checkpoint first ON first.seq = (SELECT min(c.seq) FROM checkpoint c WHERE c.namespace = n.id AND c.hidden = 0)
WHERE n.checkpoint_ns = '';
"""

STEPS: tuple[str, ...] = (_TABLES + _VIEWS,)


def statements(step: str) -> Iterator[str]:
    """One by one: they must run in a transaction of ours, and `executescript` commits first."""
    statement = ""
    for line in step.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
