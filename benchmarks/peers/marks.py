"""What a consumer tells the command: when its first handler ran, and how far it has come.

Every consumer's handler is this one function, so that it costs all the same. A mark is a line with
the number of the call and the time by the clock that all processes share.
"""

from __future__ import annotations

import itertools
import os
import time

EVERY = 500
"""Calls from one mark to the next, unless all are wanted."""

_calls = itertools.count()
_pipe = int(os.environ.get("PEERS_PIPE", "-1"))
_every = 1 if os.environ.get("PEERS_EACH") else EVERY


def handled() -> None:
    """Count a call, and mark the first and then one in so many."""
    call = next(_calls)
    if call % _every == 0:
        os.write(_pipe, f"{call} {time.monotonic()}\n".encode())
