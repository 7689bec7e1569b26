"""What PostgreSQL takes in each column, and Python, a calendar or good sense does not: as SQL."""

from __future__ import annotations

MOMENTS = [
    "'infinity'",
    "'-infinity'",
    "'294276-12-31 23:59:59Z'",
    "'10000-01-01Z'",
    "'4714-11-24 00:00:00Z BC'",
]
COUNTS = ["0", "-1", "2147483647", "-2147483648"]
IDS = ["2147483648", "9223372036854775807", "0", "-9223372036854775808"]
TEXTS = ["''", "repeat('😀', 255)", "E'\\r\\n\\x1b[2J'", "'__reserved'"]
LONG_TEXTS = ["''", "repeat('ü', 5000000)"]
BODIES = [
    "''",
    "'\\xff00'",
    "'{'",
    "'NaN'",
    "'1e5000'",
    "convert_to('1' || repeat('0', 5000), 'UTF8')",
    "convert_to(repeat('[', 100000), 'UTF8')",
    "convert_to(repeat('[', 900) || repeat(']', 900), 'UTF8')",
    "convert_to('\"\\ud800\"', 'UTF8')",
    "convert_to('\"\\u0000\"', 'UTF8')",
    "convert_to('{\"a\": 1, \"a\": 2}', 'UTF8')",
    "convert_to('\"' || repeat('x', 20000000) || '\"', 'UTF8')",
]
DOCUMENTS = [
    "'null'",
    "'7'",
    "'\"text\"'",
    "'[]'",
    "'[[]]'",
    "'{}'",
    '\'{"": ""}\'',
    "'{\"a\": null}'",
    '\'{"a": {"b": [1]}}\'',
    "'{\"a\": 1e5000}'",
    "('{\"a\": ' || repeat('9', 5000) || '}')::jsonb",
    "('{\"a\": ' || repeat('[', 5000) || repeat(']', 5000) || '}')::jsonb",
    '\'{"content-type": ""}\'',
    '\'{"content-type": "application/json; charset=nonsense"}\'',
    "jsonb_build_object('a', repeat('x', 5000000))",
]

MESSAGE = {
    "id": IDS,
    "queue": TEXTS,
    "payload": BODIES,
    "headers": DOCUMENTS,
    "correlation_id": TEXTS,
    "ref": ["''", "'no.such:1'", "repeat('x', 512)", "':'"],
    "timer_id": TEXTS,
    "created_at": MOMENTS,
    "next_attempt_at": MOMENTS,
    "expires_at": MOMENTS,
    "max_attempts": COUNTS,
    "attempts_count": COUNTS,
    "deliveries_count": COUNTS,
    "first_attempt_at": MOMENTS,
    "last_attempt_at": MOMENTS,
    "last_error": LONG_TEXTS,
    "leased_by": TEXTS,
    "lease_expires_at": MOMENTS,
}
LETTER = {
    "id": IDS,
    "original_id": IDS,
    "queue": TEXTS,
    "payload": BODIES,
    "headers": DOCUMENTS,
    "correlation_id": TEXTS,
    "ref": MESSAGE["ref"],
    "timer_id": TEXTS,
    "created_at": MOMENTS,
    "first_attempt_at": MOMENTS,
    "last_attempt_at": MOMENTS,
    "attempts_count": COUNTS,
    "deliveries_count": COUNTS,
    "failed_at": MOMENTS,
    "failure_reason": ["''", "'nonsense'", "repeat('x', 32)"],
    "exception_class": TEXTS,
    "last_exception": LONG_TEXTS,
    "fingerprint": ["''", "repeat('x', 64)"],
}
SCHEDULE = {
    "id": IDS,
    "name": TEXTS,
    "spec": ["''", "'@every 0s'", "'@every 99999999999999999999d'", "'@cron'", "repeat('*', 255)"],
    "timezone": ["''", "'Nowhere/Land'", "'../../etc/passwd'", "repeat('x', 64)"],
    "queue": TEXTS,
    "payload": BODIES,
    "headers": DOCUMENTS,
    "max_attempts": COUNTS,
    "expires_in": ["'0'", "'-1 day'", "'178000000 years'", "'1 month -30 days'"],
    "catch_up": ["''", "'nonsense'"],
    "source": ["''", "'nonsense'"],
    "next_run_at": [*MOMENTS, "NULL"],
    "last_boundary_at": MOMENTS,
    "last_run_at": MOMENTS,
    "last_message_id": IDS,
    "last_error": LONG_TEXTS,
    "skipped_count": [*COUNTS, "9223372036854775807"],
    "planned_for": ["''", "repeat('x', 100)"],
    "plan_from": MOMENTS,
    "retry_at": MOMENTS,
    "withdrawn_at": MOMENTS,
}
WORKER = {
    "worker_id": TEXTS,
    "kind": ["''", "'nonsense'"],
    "host": TEXTS,
    "pid": COUNTS,
    "queues": DOCUMENTS,
    "concurrency": COUNTS,
    "running": COUNTS,
    "started_at": MOMENTS,
    "last_seen_at": MOMENTS,
}
LEASE = {"owner": TEXTS, "acquired_at": MOMENTS, "expires_at": MOMENTS}
COUNTER = {
    "minute": MOMENTS,
    "queue": TEXTS,
    "completed": ["-1", "9223372036854775807", "-9223372036854775808"],
    "retried": ["9223372036854775807"],
    "buried": ["9223372036854775807"],
}


def cases(columns: dict[str, list[str]]) -> list[tuple[str, str]]:
    """Return each column with each of its values."""
    return [(column, value) for column, values in columns.items() for value in values]
