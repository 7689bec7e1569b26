"""Measure one consumer once: empty the tables, fill them, and let it work in processes of its own.

The clock starts when the first handler runs, in whichever process, and stops when no work is left.
So nobody's start is counted, and everybody's last settlement is.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from benchmarks.peers.marks import EVERY
from benchmarks.peers.peer import Consumer, Peer

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 120.0
"""Seconds from one sign of life of a consumer to the next."""


class Stuck(Exception):
    """A peer's process failed, or its consumer has made no progress."""


class Measurer:
    """Measures one peer in its database."""

    def __init__(self, peer: type[Peer], url: str) -> None:
        self.peer = peer
        self._environment = {**os.environ, "DATABASE_URL": url}
        self._connection = psycopg.connect(url, autocommit=True)
        self._act("prepare")

    def close(self) -> None:
        self._connection.close()

    def consuming(self, consumer: Consumer, messages: int) -> float:
        """Return the messages a second of one run."""
        self._fill(messages)
        with self._running(consumer) as marks:
            slack = EVERY * consumer.processes
            first = marks.first()
            marks.wait_for(messages - slack)
            deadline = time.monotonic() + PATIENCE
            while self._is_work_left():
                if time.monotonic() > deadline:
                    raise Stuck(f"{self.peer.name} leaves messages behind")
                time.sleep(0.001)
            return messages / (time.monotonic() - first)

    def publishing(self, way: str, messages: int) -> float:
        """Return the messages a second of one run."""
        self._empty()
        return messages / float(self._act("publish", way=way, messages=messages))

    def latency(self, samples: int) -> list[float]:
        """Return so many delays in seconds, from before the transaction to the handler."""
        consumer = self.peer.listener
        assert consumer is not None
        self._empty()
        with self._running(consumer, PEERS_EACH="1") as marks:
            time.sleep(2)  # Until it listens: nobody says so.
            pipe = marks.give_away()
            delays = self._act("latency", pipe, samples=samples, pipe=pipe)
        return [float(delay) for delay in delays]

    def _fill(self, messages: int) -> None:
        self._empty()
        self._act("fill", messages=messages)
        self._connection.execute("ANALYZE")

    def _empty(self) -> None:
        names = sql.SQL(", ").join(map(sql.Identifier, self.peer.tables))
        self._connection.execute(sql.SQL("TRUNCATE {} CASCADE").format(names))

    def _is_work_left(self) -> bool:
        row = self._connection.execute(self.peer.left.encode()).fetchone()
        return bool(row and row[0])

    def _act(self, act: str, *pipes: int, **arguments: Any) -> Any:
        """Let the peer do something in a process of its own, and return what it printed."""
        done = subprocess.run(
            self._command(act, arguments),
            cwd=ROOT,
            env=self._environment,
            pass_fds=pipes,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise Stuck(f"{self.peer.name}, {act}: {(done.stderr.strip() or '?').splitlines()[-1]}")
        return json.loads(done.stdout)

    @contextmanager
    def _running(self, consumer: Consumer, **environment: str) -> Iterator[Marks]:
        reader, writer = os.pipe()
        marks = Marks(self.peer.name, reader)
        processes = [
            subprocess.Popen(
                self._command("consume", consumer.arguments),
                cwd=ROOT,
                env={**self._environment, "PEERS_PIPE": str(writer), **environment},
                pass_fds=(writer,),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for _ in range(consumer.processes)
        ]
        os.close(writer)
        try:
            yield marks
        finally:
            for process in processes:
                _end(process)
            marks.close()

    def _command(self, act: str, arguments: dict[str, Any]) -> list[str]:
        child = [sys.executable, "-m", "benchmarks.peers.child"]
        return [*child, self.peer.name, act, json.dumps(arguments)]


class Marks:
    """The reader's end of a pipe of marks."""

    def __init__(self, peer: str, pipe: int) -> None:
        self._peer = peer
        self._pipe = pipe
        self._handled = 0

    def first(self) -> float:
        """Return when the first handler ran."""
        return self._read()

    def wait_for(self, calls: int) -> None:
        """Wait until so many calls are known of."""
        while self._handled < calls:
            self._read()

    def give_away(self) -> int:
        """Return the pipe, which another process will read from."""
        return self._pipe

    def close(self) -> None:
        os.close(self._pipe)

    def _read(self) -> float:
        """Return the time of the next mark; marks of several processes add up."""
        line = b""
        while not line.endswith(b"\n"):
            if not select.select([self._pipe], [], [], PATIENCE)[0]:
                raise Stuck(f"{self._peer} makes no progress")
            byte = os.read(self._pipe, 1)
            if not byte:
                raise Stuck(f"{self._peer} has ended too early")
            line += byte
        call, moment = line.split()
        self._handled += EVERY if int(call) else 0
        return float(moment)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
