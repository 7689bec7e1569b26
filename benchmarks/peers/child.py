"""One act of one peer, in a process of its own: `PEER ACT [ARGUMENTS AS JSON]`."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from benchmarks.peers.everyone import PEERS
from benchmarks.peers.peer import Peer

WARM_UP = 20
PAUSE = 0.02
"""Seconds in which a consumer becomes idle again."""


def main(name: str, act: str, arguments: str = "{}") -> None:
    """Do it, and print what comes out as JSON."""
    peer = PEERS[name]()
    print(json.dumps(ACTS[act](peer, **json.loads(arguments))))


def latency(peer: Peer, *, samples: int, pipe: int) -> list[float]:
    """Return how many seconds after the start of a publishing transaction the handler ran."""
    delays = []
    with peer.publisher() as publish, os.fdopen(pipe) as marks:
        for _ in range(WARM_UP + samples):
            time.sleep(PAUSE)
            began = time.monotonic()
            publish()
            delays.append(float(marks.readline().split()[1]) - began)
    return delays[WARM_UP:]


ACTS: dict[str, Any] = {
    "prepare": lambda peer: peer.prepare(),
    "fill": lambda peer, messages: peer.fill(messages),
    "consume": lambda peer, **arguments: peer.consume(**arguments),
    "publish": lambda peer, way, messages: peer.publish(way, messages),
    "latency": latency,
}

if __name__ == "__main__":
    main(*sys.argv[1:])
