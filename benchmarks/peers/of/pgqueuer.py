"""PgQueuer on asyncpg and uvloop, which it brings itself."""

from __future__ import annotations

import os
import time
from typing import Any

from benchmarks.peers import marks
from benchmarks.peers.of.faststream import run
from benchmarks.peers.peer import EACH, ENCODED, MANY, ONE, Consumer, Peer, chunks

QUEUE = "peers"
AT_ONCE = 1000


class Pgqueuer(Peer):
    name = "pgqueuer"
    packages = ("pgqueuer", "asyncpg", "uvloop")
    tables = ("pgqueuer", "pgqueuer_log")
    left = "SELECT EXISTS (SELECT FROM pgqueuer)"
    consumers = (
        Consumer("asyncpg, batch 500", {"batch": 500}),
        Consumer("asyncpg, batch 100", {"batch": 100}),
    )
    ways = (ONE, EACH, MANY)

    def prepare(self) -> None:
        run(_prepare())

    def fill(self, messages: int) -> None:
        self.publish(MANY, messages)

    def consume(self, *, batch: int) -> None:
        run(_consume(batch))

    def publish(self, way: str, messages: int) -> float:
        return float(run(_publish(way, messages)))


async def _connect() -> Any:
    import asyncpg

    return await asyncpg.connect(os.environ["DATABASE_URL"])


async def _queries() -> tuple[Any, Any]:
    from pgqueuer.queries import Queries

    connection = await _connect()
    return connection, Queries.from_asyncpg_connection(connection)


async def _prepare() -> None:
    _, queries = await _queries()
    await queries.install()


async def _consume(batch: int) -> None:
    from pgqueuer import PgQueuer

    queuer = PgQueuer.from_asyncpg_connection(await _connect())

    @queuer.entrypoint(QUEUE)
    async def handle(job: Any) -> None:
        marks.handled()

    await queuer.run(batch_size=batch)


async def _publish(way: str, messages: int) -> float:
    connection, queries = await _queries()
    began = time.perf_counter()
    if way == EACH:
        for _ in range(messages):
            async with connection.transaction():
                await queries.enqueue(QUEUE, ENCODED)
        return time.perf_counter() - began
    at_once = AT_ONCE if way == MANY else 1
    async with connection.transaction():
        for size in chunks(messages, at_once):
            if way == ONE:
                await queries.enqueue(QUEUE, ENCODED)
            else:
                await queries.enqueue([QUEUE] * size, [ENCODED] * size, [0] * size)
    return time.perf_counter() - began
