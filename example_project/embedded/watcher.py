"""Clear a temporary server away once its owner has ended: ``FOLDER PROGRAMS [UID GID]``.

Standard input is a pipe that only the owner writes to, so its end is the owner's end, even by
SIGKILL. As a script, it imports the standard library alone, to start quickly and to need nothing
that may be gone by then.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

PATIENCE = 30  # Seconds to keep trying while something still writes to the folder.


def main(folder: Path, programs: Path, *account: int) -> None:
    """Wait for the owner's end, then stop the server and remove the folder."""
    sys.stdin.buffer.read()
    deadline = time.monotonic() + PATIENCE
    # An owner killed early leaves an initdb or a starting server that fills the folder while it is
    # being removed.
    while folder.exists() and time.monotonic() < deadline:
        _stop(folder / "data", programs / "pg_ctl", account)
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.02)


def _stop(data: Path, pg_ctl: Path, account: tuple[int, ...]) -> None:
    identity: dict[str, Any] = {}
    if account:
        identity = {"user": account[0], "group": account[1], "extra_groups": []}
    command = [str(pg_ctl), "stop", "-D", str(data), "-m", "immediate"]
    # The programs themselves may not be there yet.
    with suppress(OSError):
        subprocess.run(command, check=False, capture_output=True, **identity)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
