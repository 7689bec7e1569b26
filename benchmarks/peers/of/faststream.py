"""faststream-outbox, on asyncpg and uvloop, with its autovacuum options."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from psycopg.conninfo import conninfo_to_dict

from benchmarks.peers import marks
from benchmarks.peers.peer import BODY, EACH, MANY, ONE, Consumer, Peer, chunks

QUEUE = "peers"
AT_ONCE = 1000


class FaststreamOutbox(Peer):
    name = "faststream-outbox"
    packages = ("faststream-outbox", "faststream", "SQLAlchemy", "asyncpg", "uvloop")
    tables = ("outbox",)
    left = "SELECT EXISTS (SELECT FROM outbox)"
    consumers = (
        Consumer("2 processes, batch 500, flush 500", {"batch": 500, "flush": 500}, processes=2),
        Consumer("1 worker, batch 500, flush 500", {"batch": 500, "flush": 500}),
    )
    ways = (ONE, EACH, MANY)
    listener = Consumer("1 worker, batch 500, flush 500", {"batch": 500, "flush": 500})

    def prepare(self) -> None:
        run(_prepare())

    def fill(self, messages: int) -> None:
        self.publish(MANY, messages)

    def consume(self, *, batch: int, flush: int = 1, workers: int = 1) -> None:
        run(_consume(batch, flush, workers))

    def publish(self, way: str, messages: int) -> float:
        return run(_publish(way, messages))

    @contextmanager
    def publisher(self) -> Iterator[Callable[[], None]]:
        with _runner() as runner:
            engine, _, broker = _open()
            connection = runner.run(engine.connect().start())
            try:
                yield lambda: runner.run(_publish_each(broker, connection, 1))
            finally:
                runner.run(connection.close())


def run(coroutine: Any) -> Any:
    """Run it in the loop that `faststream run` would take, too."""
    with _runner() as runner:
        return runner.run(coroutine)


def _runner() -> asyncio.Runner:
    import uvloop

    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


def _open(**pool: int) -> tuple[Any, Any, Any]:
    """Return an engine, the metadata of the table, and a broker that has no subscriber yet."""
    from faststream_outbox import OutboxBroker, make_outbox_table
    from sqlalchemy import URL, MetaData
    from sqlalchemy.ext.asyncio import create_async_engine

    at = conninfo_to_dict(os.environ["DATABASE_URL"])
    url = URL.create(
        "postgresql+asyncpg",
        username=at.get("user"),
        password=at.get("password"),
        host=at.get("host"),
        port=int(at.get("port") or 5432),
        database=at["dbname"],
    )
    metadata = MetaData()
    engine = create_async_engine(url, **pool)
    return (
        engine,
        metadata,
        OutboxBroker(engine, outbox_table=make_outbox_table(metadata), logger=None),
    )


async def _prepare() -> None:
    from faststream_outbox import outbox_autovacuum_ddl
    from sqlalchemy import text

    engine, metadata, _ = _open()
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
        await connection.execute(text(outbox_autovacuum_ddl("outbox")))


async def _consume(batch: int, flush: int, workers: int) -> None:
    from faststream import FastStream

    _, _, broker = _open(pool_size=workers + 1)

    @broker.subscriber(
        QUEUE, max_workers=workers, fetch_batch_size=batch, terminal_flush_batch_size=flush
    )
    async def handle(body: Any) -> None:
        marks.handled()

    await FastStream(broker).run()


async def _publish(way: str, messages: int) -> float:
    engine, _, broker = _open()
    async with engine.connect() as connection:
        began = time.perf_counter()
        await _WAYS[way](broker, connection, messages)
        return time.perf_counter() - began


async def _publish_one(broker: Any, connection: Any, messages: int) -> None:
    async with connection.begin():
        for _ in range(messages):
            await broker.publish(BODY, queue=QUEUE, session=connection)


async def _publish_each(broker: Any, connection: Any, messages: int) -> None:
    for _ in range(messages):
        async with connection.begin():
            await broker.publish(BODY, queue=QUEUE, session=connection)


async def _publish_many(broker: Any, connection: Any, messages: int) -> None:
    async with connection.begin():
        for size in chunks(messages, AT_ONCE):
            await broker.publish_batch(*[BODY] * size, queue=QUEUE, session=connection)


_WAYS = {ONE: _publish_one, EACH: _publish_each, MANY: _publish_many}
