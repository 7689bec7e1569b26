"""The server that the processes of the example project share.

Its data stay in the user's cache folder. Every process that uses it holds a shared lock on
``users.lock``; the one that can take that lock alone when it leaves is the last, and stops the
server. The lock of a killed process is gone with it, so it neither counts as a user nor keeps
anybody from joining the server it left behind. ``start.lock`` makes coming and leaving one at a
time.
"""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from example_project.embedded import locks
from example_project.embedded.account import Account, can_reach, server_account
from example_project.embedded.server import Server, open_to

NAME = "django_outbox_example"

_joined: dict[int, str] = {}
_joining = threading.Lock()


def start_shared(version: int = 18) -> str:
    """Return the URL of the shared server, which runs at least until this process ends."""
    with _joining:
        if version not in _joined:
            _joined[version] = _join(Server(shared_folder(version), version))
        return _joined[version]


def shared_folder(version: int) -> Path:
    """Return the server's folder, made if need be; no major version can read another's data."""
    account = server_account()
    for place in _places():
        own = _own_folder(place, account)
        if own is not None:
            folder = own / f"pg{version}"
            folder.mkdir(exist_ok=True)
            return open_to(account, folder)
    message = (
        f"No folder can be made for PostgreSQL's data in any of: {', '.join(map(str, _places()))}."
    )
    raise RuntimeError(message)


def _join(server: Server) -> str:
    with locks.holding(server.folder / "start.lock"):
        membership = locks.take(server.folder / "users.lock", shared=True)
        try:
            server.ensure_running()
        except BaseException:
            os.close(membership)
            raise
        url = server.url
    atexit.register(_leave, server, membership)
    return url


def _leave(server: Server, membership: int) -> None:
    with locks.holding(server.folder / "start.lock"):
        os.close(membership)
        alone = locks.try_take(server.folder / "users.lock")
        if alone is not None:
            server.stop()
            os.close(alone)


def _places() -> Iterator[Path]:
    """Yield the folders that may hold the data, best first."""
    cache = Path("~/Library/Caches" if sys.platform == "darwin" else "~/.cache").expanduser()
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    yield (named if named.is_absolute() else cache) / NAME
    if os.geteuid() == 0:
        # Root's home is usually closed to the account that the server then runs as.
        yield Path("/var/cache") / NAME
    yield Path(tempfile.gettempdir()) / f"{NAME}-{os.geteuid()}"


def _own_folder(folder: Path, account: Account | None) -> Path | None:
    """Make the folder, or return ``None`` if it is another user's or out of the account's reach."""
    if not can_reach(account, folder.parent):
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    # In a folder that all may write to, the name may have been taken by somebody else, who could
    # then read along.
    if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
        return None
    open_to(account, folder)
    return folder if can_reach(account, folder) else None
