"""Every SQL statement that touches the tables, one named function each: rows in, rows out.

This package knows `sqlite3` and nothing of LangGraph. Values are always bound. Where a statement takes many keys they are
bound as one JSON array, so that SQLite's limit on variables is never met and the statement is prepared once.

Encryption ends here: rows are sealed on the way in, opened on the way out (see `sealing.py`). What does not open comes out
as `Unopened`, so that only who needs it fails.

Imports point down here, too:

    moving       whole threads, out of one file and into another
    upkeep       what keeps a file well and small
    overviews    what people see, through the views
    owners       who answers for a thread
    checkpoints  in the order of their commits
    once         what tasks did outside
    writes       what tasks wrote
    blobs        values, each with what it was compressed against
    namespaces   threads and their namespaces
    resealing    rows sealed anew
    looking      rows by their numbers, a batch at a time
    opening      rows sealed on the way in and opened on the way out
    rows         a named tuple for each kind of row, and its columns
"""

from langgraph_sqlite_ckpt.tables.blobs import *
from langgraph_sqlite_ckpt.tables.checkpoints import *
from langgraph_sqlite_ckpt.tables.looking import *
from langgraph_sqlite_ckpt.tables.moving import *
from langgraph_sqlite_ckpt.tables.namespaces import *
from langgraph_sqlite_ckpt.tables.once import *
from langgraph_sqlite_ckpt.tables.opening import *
from langgraph_sqlite_ckpt.tables.overviews import *
from langgraph_sqlite_ckpt.tables.owners import *
from langgraph_sqlite_ckpt.tables.resealing import *
from langgraph_sqlite_ckpt.tables.rows import *
from langgraph_sqlite_ckpt.tables.upkeep import *
from langgraph_sqlite_ckpt.tables.writes import *
