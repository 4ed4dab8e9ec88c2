"""Which file system a path is on: over a network, SQLite's WAL loses data, as its shared memory ends at the machine."""

from __future__ import annotations

import os
import re
from pathlib import Path

_MOUNTS = "/proc/self/mountinfo"  # Linux; elsewhere nothing is known
_SHARED = re.compile(
    r"9p|afs|beegfs|ceph|cifs|coda|davfs|fuse(\..*)?|glusterfs|gpfs|lustre|ncpfs|nfs4?|ocfs2|orangefs|panfs|smb(2|3|fs)"
    r"|vboxsf|virtiofs|vmhgfs"
)


def shared_file_system(path: str, mounts: str | None = None) -> str | None:
    """The type of the network or FUSE file system that a path is on; None where it is a local one, or nobody knows.

    Args:
        path: Absolute; it need not exist.
        mounts: As Linux has them in /proc/self/mountinfo. Default: what it has now.
    """
    kind = _type_at(os.path.realpath(path), _now() if mounts is None else mounts)
    return kind if _SHARED.fullmatch(kind) else None


def _now() -> str:
    try:
        return Path(_MOUNTS).read_text(errors="surrogateescape")
    except OSError:
        return ""


def _type_at(path: str, mounts: str) -> str:
    """Of the longest mount point above the path; of two, the later covers the earlier."""
    found, kind = "", ""
    for line in mounts.splitlines():
        place, separator, source = line.partition(" - ")
        fields = place.split(" ")
        if not separator or len(fields) < 5:
            continue
        point = _unescaped(fields[4])
        if len(point) >= len(found) and (path == point or path.startswith(point.rstrip("/") + "/")):
            found, kind = point, source.split(" ")[0]
    return kind


def _unescaped(text: str) -> str:
    r"""Linux writes a space as \040, and so on."""
    for code, plain in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, plain)
    return text
