"""The command line: what an agent did, and what the Python API does, without writing Python.

    app        the application: opening files, errors as exit codes, questions, progress
    looking    threads, runs, history, show, diff
    keeping    stats, verify, compact, rekey, backup, restore, sweep, delete, prune
    effects    effects, resolve
    moving     copy, import, export, load
    page       a thread as one HTML page
    drawing    steps, values and changes for the terminal, and as Mermaid
    changes    what is different between two values
    timeline   a thread as a tree of steps

A command is a function with `@command(example=...)`; to add one, write it in the module that it belongs to.
"""

from __future__ import annotations

# `--help` lists the commands in the order of these imports.
from langgraph_sqlite_ckpt.cli import looking

# isort: split
from langgraph_sqlite_ckpt.cli import effects, keeping, moving
from langgraph_sqlite_ckpt.cli.app import run

__all__ = ["effects", "keeping", "looking", "moving", "run"]
