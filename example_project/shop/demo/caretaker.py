"""End the processes that its owner has left behind, remove their log, and end itself: `LOG`.

Standard input is a pipe that only the owner writes to: `PID` for a process it has started, `-PID`
for one it has seen end, `0` to keep the log. Its end is the owner's end, even by SIGKILL. As a
script, it imports the standard library alone, to start quickly.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

PATIENCE = 5.0  # Seconds to end in good order.


def main(log: Path) -> None:
    """Note the processes until the owner's end, then end those that are left."""
    left: set[int] = set()
    keep_log = False
    for pid in map(int, sys.stdin):
        if pid == 0:
            keep_log = True
        elif pid > 0:
            left.add(pid)
        else:
            left.discard(-pid)
    _end(left)
    if not keep_log:
        log.unlink(missing_ok=True)


def _end(left: set[int]) -> None:
    _send(signal.SIGINT, left)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and any(map(_is_alive, left)):
        time.sleep(0.05)  # They are no children of this process, so it cannot wait for them.
    _send(signal.SIGKILL, left)


def _send(number: signal.Signals, pids: set[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    main(Path(sys.argv[1]))
