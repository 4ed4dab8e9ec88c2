"""`python -m langgraph_sqlite_ckpt`: the command line, which needs the extra `cli`."""

from __future__ import annotations

import sys
from importlib.util import find_spec


def main() -> None:
    missing = [name for name in ("typer", "rich") if find_spec(name) is None]
    if missing:
        sys.exit(f'The command line needs {" and ".join(missing)}: pip install "langgraph-sqlite-ckpt[cli]"')
    from langgraph_sqlite_ckpt.cli import run

    run()


if __name__ == "__main__":
    main()
