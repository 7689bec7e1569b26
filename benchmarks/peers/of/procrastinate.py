"""Procrastinate on its psycopg connector. Finished jobs are deleted, as elsewhere."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from benchmarks.peers import marks
from benchmarks.peers.peer import BODY, EACH, MANY, Consumer, Peer, chunks

AT_ONCE = 1000


class Procrastinate(Peer):
    name = "procrastinate"
    packages = ("procrastinate", "psycopg")
    tables = ("procrastinate_jobs",)
    left = "SELECT EXISTS (SELECT FROM procrastinate_jobs)"
    consumers = (Consumer("concurrency 10, finished jobs deleted", {"concurrency": 10}, slow=True),)
    ways = (EACH, MANY)

    def prepare(self) -> None:
        asyncio.run(_prepare())

    def fill(self, messages: int) -> None:
        self.publish(MANY, messages)

    def consume(self, *, concurrency: int) -> None:
        asyncio.run(_consume(concurrency))

    def publish(self, way: str, messages: int) -> float:
        return asyncio.run(_publish(way, messages))


def _app() -> tuple[Any, Any]:
    from procrastinate import App, PsycopgConnector

    app = App(connector=PsycopgConnector(conninfo=os.environ["DATABASE_URL"]))

    @app.task(name="peers")
    async def handle(text: str) -> None:
        marks.handled()

    return app, handle


async def _prepare() -> None:
    app, _ = _app()
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def _consume(concurrency: int) -> None:
    app, _ = _app()
    async with app.open_async():
        await app.run_worker_async(concurrency=concurrency, delete_jobs="always")


async def _publish(way: str, messages: int) -> float:
    app, task = _app()
    async with app.open_async():
        began = time.perf_counter()
        if way == EACH:
            for _ in range(messages):
                await task.defer_async(**BODY)
        else:
            for size in chunks(messages, AT_ONCE):
                await task.batch_defer_async(*[BODY] * size)
        return time.perf_counter() - began
