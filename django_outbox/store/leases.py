"""The statements on `django_outbox_lease`.

A lease changes hands only under an advisory lock that ends with the statement's own transaction, so
it works behind a transaction-mode pooler and nothing is left behind. Whoever wants it tries the
lock; whoever has it waits for it, which is no longer than another's statement takes.
"""

from __future__ import annotations

from . import Cursor

_LOCK = 0x6F7574626F78  # "outbox"

ACQUIRE = """
INSERT INTO django_outbox_lease AS lease (name, owner, acquired_at, expires_at)
SELECT %(name)s, %(owner)s, clock.now, clock.now + %(ttl)s * interval '1 second'
FROM (SELECT clock_timestamp() AS now) AS clock
WHERE pg_try_advisory_xact_lock(%(lock)s)
ON CONFLICT (name) DO UPDATE SET
    owner = excluded.owner,
    acquired_at = excluded.acquired_at,
    expires_at = excluded.expires_at
WHERE lease.expires_at <= clock_timestamp() OR lease.owner = excluded.owner
RETURNING owner
"""


def acquire(cursor: Cursor, *, name: str, owner: str, ttl: float) -> bool:
    """Take the lease for `ttl` seconds if nobody else has it; tell whether that went well."""
    cursor.execute(ACQUIRE, {"name": name, "owner": owner, "ttl": ttl, "lock": _LOCK})
    return cursor.fetchone() is not None


RENEW = """
WITH locked AS MATERIALIZED (SELECT pg_advisory_xact_lock(%(lock)s))
UPDATE django_outbox_lease
SET expires_at = clock_timestamp() + %(ttl)s * interval '1 second'
WHERE name = %(name)s
    AND owner = %(owner)s
    AND (SELECT count(*) FROM locked) = 1
    AND expires_at > clock_timestamp()
RETURNING owner
"""


def renew(cursor: Cursor, *, name: str, owner: str, ttl: float) -> bool:
    """Keep the lease for `ttl` seconds from now; False if it has run out or is another's."""
    cursor.execute(RENEW, {"name": name, "owner": owner, "ttl": ttl, "lock": _LOCK})
    return cursor.fetchone() is not None


HOLDS = """
SELECT owner
FROM django_outbox_lease
WHERE name = %(name)s AND owner = %(owner)s AND expires_at > clock_timestamp()
FOR SHARE
"""


def holds(cursor: Cursor, *, name: str, owner: str) -> bool:
    """Tell whether `owner` has the lease, and keep it from changing in this transaction."""
    cursor.execute(HOLDS, {"name": name, "owner": owner})
    return cursor.fetchone() is not None


RELEASE = """
DELETE FROM django_outbox_lease WHERE name = %(name)s AND owner = %(owner)s RETURNING owner
"""


def release(cursor: Cursor, *, name: str, owner: str) -> bool:
    """Give the lease up if it is `owner`'s; tell whether it was."""
    cursor.execute(RELEASE, {"name": name, "owner": owner})
    return cursor.fetchone() is not None


REMAINING = """
SELECT extract(epoch FROM expires_at)::float8 - extract(epoch FROM clock_timestamp())::float8
FROM django_outbox_lease
WHERE name = %(name)s AND owner <> %(besides)s
"""


def remaining(cursor: Cursor, *, name: str, besides: str) -> float:
    """Return for how many seconds somebody else still has the lease, 0 if nobody does."""
    cursor.execute(REMAINING, {"name": name, "besides": besides})
    row = cursor.fetchone()
    return 0.0 if row is None else max(0.0, row[0])


HOLDER = """
SELECT owner FROM django_outbox_lease WHERE name = %(name)s AND expires_at > clock_timestamp()
"""


def holder(cursor: Cursor, *, name: str) -> str | None:
    """Return who has the lease, None if nobody does."""
    cursor.execute(HOLDER, {"name": name})
    row = cursor.fetchone()
    return None if row is None else row[0]
