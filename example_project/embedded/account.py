"""The account that the server runs as.

PostgreSQL refuses to run as root. Started by root, it runs as an unprivileged account that every
system has; none is created, and what that account cannot reach is copied or put elsewhere rather
than opened to it.
"""

from __future__ import annotations

import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

UNPRIVILEGED = ("nobody", "daemon")


class Identity(TypedDict, total=False):
    """The keywords that make ``subprocess`` run a program as somebody else."""

    user: int
    group: int
    extra_groups: list[int]


@dataclass(frozen=True)
class Account:
    """Somebody other than the user of this process."""

    uid: int
    gid: int

    @property
    def identity(self) -> Identity:
        return {"user": self.uid, "group": self.gid, "extra_groups": []}


def server_account() -> Account | None:
    """Return the account to run the server as, or ``None`` for the user's own."""
    if os.geteuid() != 0:
        return None
    for name in UNPRIVILEGED:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_uid, entry.pw_gid)
    message = (
        f"PostgreSQL does not run as root, and there is no account {' or '.join(UNPRIVILEGED)}. "
        "Run this as a normal user, or set DATABASE_URL to a server of your own."
    )
    raise RuntimeError(message)


def can_reach(account: Account | None, path: Path) -> bool:
    """Tell whether the account gets to ``path``, or to the nearest folder above it that exists."""
    if account is None:
        return True
    path = path.absolute()
    existing = [place for place in (path, *path.parents) if place.exists()]
    return all(place.stat().st_mode & stat.S_IXOTH for place in existing)


def give(path: Path, account: Account | None) -> None:
    """Make the account the owner of a folder that was just made here."""
    if account is not None:
        os.chown(path, account.uid, account.gid)
