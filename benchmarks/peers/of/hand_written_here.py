"""The limit on our own table: a loop by hand that hands over what our handlers get.

It reads the same columns as a claim of ours, checks the same lease, and decodes each payload; it
has no retries, no dead letters, no threads and no window. What is left between it and the bare
`hand-written` loop is what a table with timers, retries and a claim order costs.
"""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

from benchmarks.peers import marks
from benchmarks.peers.of.hand_written import connect
from benchmarks.peers.of.ours import QUEUE, DjangoOutbox
from benchmarks.peers.peer import Consumer

CLAIM = """
WITH picked AS MATERIALIZED (
    SELECT id FROM django_outbox_message
    WHERE queue = %s AND next_attempt_at <= now()
        AND (lease_expires_at IS NULL OR lease_expires_at < now())
    ORDER BY next_attempt_at, id
    LIMIT %s
    FOR UPDATE SKIP LOCKED
)
UPDATE django_outbox_message AS message
SET lease_token = %s, lease_expires_at = now() + interval '1 minute', leased_by = 'by hand',
    deliveries_count = message.deliveries_count + 1
FROM picked
WHERE message.id = picked.id
RETURNING message.id, message.message_id, message.payload, message.headers,
    message.correlation_id, message.timer_id, message.attempts_count, message.deliveries_count,
    message.created_at
"""
SETTLE = "DELETE FROM django_outbox_message WHERE id = ANY (%s) AND lease_token = %s"


class HandWrittenHere(DjangoOutbox):
    name = "hand-written, on our table"
    consumers = (
        Consumer("claims of 500", {"batch": 500}),
        Consumer("claims of 100", {"batch": 100}),
    )
    ways = ()
    listener = None

    def consume(self, *, batch: int) -> None:
        with connect() as connection:
            connection.execute("SET enable_seqscan = off")
            while True:
                work(connection, batch)


def work(connection: Any, batch: int) -> None:
    """Claim, decode, handle and settle one batch."""
    token = uuid4()
    rows = connection.execute(CLAIM, [QUEUE, batch, token], binary=True).fetchall()
    for row in rows:
        json.loads(row[2])
        marks.handled()
    if rows:
        connection.execute(SETTLE, [[row[0] for row in rows], token])
