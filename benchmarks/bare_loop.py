"""The least that can listen: a hand-written loop that latencies are compared with.

One connection; on a notification one claim that leases what is due, the time of each message to
the pipe, one delete. It renews nothing, recovers from nothing and runs no handler.
"""

from __future__ import annotations

import os
import time

import psycopg

CLAIM = """
UPDATE django_outbox_message SET
    lease_token = gen_random_uuid(),
    lease_expires_at = clock_timestamp() + interval '1 minute'
WHERE id = ANY(ARRAY(
    SELECT id FROM django_outbox_message
    WHERE queue = 'bare' AND next_attempt_at <= clock_timestamp() AND lease_token IS NULL
    ORDER BY next_attempt_at, id LIMIT 100 FOR UPDATE SKIP LOCKED
))
RETURNING id, payload
"""

DELETE = "DELETE FROM django_outbox_message WHERE id = ANY(%s)"


def main() -> None:
    """Listen until killed."""
    pipe = int(os.environ["BENCH_PIPE"])
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        connection.execute("LISTEN django_outbox")
        os.write(pipe, b"ready\n")
        while True:
            for _ in connection.notifies(stop_after=1):
                pass
            rows = connection.execute(CLAIM).fetchall()
            for _ in rows:
                os.write(pipe, f"{time.monotonic()}\n".encode())
            connection.execute(DELETE, [[row[0] for row in rows]])


if __name__ == "__main__":
    main()
