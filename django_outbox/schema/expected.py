"""The tables as the migrations make them, in the words of PostgreSQL's catalogue."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..store.schema import Column

MOMENT = "timestamp with time zone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What one table must have; what a site has added to it is its own."""

    columns: dict[str, Column]
    indexes: dict[str, str]
    checks: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    triggers: dict[str, str] = field(default_factory=dict)


EXPECTED = {
    "django_outbox_message": Table(
        columns={
            "id": Column("bigint", is_required=True, is_identity=True),
            "message_id": Column("uuid", is_required=True, default="gen_random_uuid()"),
            "queue": Column("character varying(255)", is_required=True),
            "payload": Column("bytea", is_required=True),
            "headers": Column("jsonb", is_required=True, default="'{}'::jsonb"),
            "correlation_id": Column(
                "character varying(255)",
                is_required=True,
                default="(gen_random_uuid())::character varying(255)",
            ),
            "timer_id": Column("character varying(255)"),
            "created_at": Column(MOMENT, is_required=True, default="clock_timestamp()"),
            "next_attempt_at": Column(MOMENT, is_required=True, default="clock_timestamp()"),
            "expires_at": Column(MOMENT),
            "max_attempts": Column("integer"),
            "attempts_count": Column("integer", is_required=True, default="0"),
            "deliveries_count": Column("integer", is_required=True, default="0"),
            "first_attempt_at": Column(MOMENT),
            "last_attempt_at": Column(MOMENT),
            "last_error": Column("text"),
            "lease_token": Column("uuid"),
            "lease_expires_at": Column(MOMENT),
            "leased_by": Column("character varying(255)"),
            "ref": Column("character varying(512)"),
        },
        indexes={
            "django_outbox_message_claim": (
                "btree (queue, next_attempt_at, id) WHERE (queue IS NOT NULL)"
            ),
            "django_outbox_message_pkey": "UNIQUE btree (id)",
            "django_outbox_message_ref": "btree (ref) WHERE (ref IS NOT NULL)",
            "django_outbox_message_timer": (
                "UNIQUE btree (queue, timer_id) WHERE (timer_id IS NOT NULL)"
            ),
        },
        checks={
            "django_outbox_message_lease": (
                "CHECK ((((lease_token IS NULL) AND (lease_expires_at IS NULL)) OR "
                "((lease_token IS NOT NULL) AND (lease_expires_at IS NOT NULL))))"
            )
        },
        options={"fillfactor": "40"},
    ),
    "django_outbox_dead_letter": Table(
        columns={
            "id": Column("bigint", is_required=True, is_identity=True),
            "original_id": Column("bigint", is_required=True),
            "message_id": Column("uuid", is_required=True),
            "queue": Column("character varying(255)", is_required=True),
            "payload": Column("bytea", is_required=True),
            "headers": Column("jsonb", is_required=True, default="'{}'::jsonb"),
            "correlation_id": Column("character varying(255)", is_required=True),
            "timer_id": Column("character varying(255)"),
            "created_at": Column(MOMENT, is_required=True),
            "first_attempt_at": Column(MOMENT),
            "last_attempt_at": Column(MOMENT),
            "attempts_count": Column("integer", is_required=True, default="0"),
            "deliveries_count": Column("integer", is_required=True, default="0"),
            "failed_at": Column(MOMENT, is_required=True, default="clock_timestamp()"),
            "failure_reason": Column("character varying(32)", is_required=True),
            "exception_class": Column("character varying(255)"),
            "last_exception": Column("text"),
            "fingerprint": Column(
                "character varying(64)", is_required=True, default="''::character varying"
            ),
            "ref": Column("character varying(512)"),
        },
        indexes={
            "django_outbox_dead_class": "btree (exception_class, failed_at)",
            "django_outbox_dead_correl": "btree (correlation_id)",
            "django_outbox_dead_error": "btree (queue, exception_class, failed_at)",
            "django_outbox_dead_group": "btree (queue, failure_reason, fingerprint, failed_at)",
            "django_outbox_dead_letter_pkey": "UNIQUE btree (id)",
            "django_outbox_dead_message": "btree (message_id)",
            "django_outbox_dead_print": "btree (fingerprint)",
            "django_outbox_dead_queue": "btree (queue, failed_at)",
            "django_outbox_dead_reason": "btree (failure_reason, failed_at)",
            "django_outbox_dead_ref": "btree (ref) WHERE (ref IS NOT NULL)",
            "django_outbox_dead_time": "btree (failed_at, id)",
            "django_outbox_dead_timer": "btree (timer_id) WHERE (timer_id IS NOT NULL)",
        },
    ),
    "django_outbox_schedule": Table(
        columns={
            "id": Column("bigint", is_required=True, is_identity=True),
            "name": Column("character varying(255)", is_required=True),
            "spec": Column("character varying(255)", is_required=True),
            "timezone": Column("character varying(64)", is_required=True),
            "queue": Column("character varying(255)", is_required=True),
            "payload": Column("bytea", is_required=True),
            "headers": Column("jsonb", is_required=True, default="'{}'::jsonb"),
            "max_attempts": Column("integer"),
            "expires_in": Column("interval"),
            "catch_up": Column(
                "character varying(8)", is_required=True, default="'all'::character varying"
            ),
            "enabled": Column("boolean", is_required=True, default="true"),
            "declared_enabled": Column("boolean"),
            "source": Column(
                "character varying(8)", is_required=True, default="'admin'::character varying"
            ),
            "next_run_at": Column(MOMENT),
            "planned_for": Column(
                "character varying(320)", is_required=True, default="''::character varying"
            ),
            "plan_from": Column(MOMENT),
            "last_boundary_at": Column(MOMENT),
            "last_run_at": Column(MOMENT),
            "last_message_id": Column("bigint"),
            "last_error": Column("text"),
            "retry_at": Column(MOMENT),
            "skipped_count": Column("bigint", is_required=True, default="0"),
            "withdrawn_at": Column(MOMENT),
            "tick_at": Column(
                MOMENT,
                is_required=True,
                generated=(
                    "CASE WHEN (NOT enabled) THEN 'infinity'::timestamp with time zone WHEN "
                    "((plan_from IS NOT NULL) OR (next_run_at IS NULL) OR "
                    "((planned_for)::text <> (((spec)::text || ' '::text) || "
                    "(timezone)::text))) THEN COALESCE(retry_at, '-infinity'::timestamp with "
                    "time zone) ELSE GREATEST(next_run_at, retry_at) END"
                ),
            ),
        },
        indexes={
            "django_outbox_schedule_name": "UNIQUE btree (name)",
            "django_outbox_schedule_pkey": "UNIQUE btree (id)",
            "django_outbox_schedule_tick": "btree (tick_at, id)",
        },
        triggers={
            "django_outbox_schedule_changed": (
                "CREATE TRIGGER django_outbox_schedule_changed BEFORE INSERT OR UPDATE OF "
                "spec, timezone, queue, payload, headers, max_attempts, expires_in, "
                "catch_up, enabled, next_run_at ON django_outbox_schedule FOR EACH ROW "
                "EXECUTE FUNCTION django_outbox_schedule_changed()"
            )
        },
    ),
    "django_outbox_lease": Table(
        columns={
            "name": Column("character varying(255)", is_required=True),
            "owner": Column("character varying(255)", is_required=True),
            "acquired_at": Column(MOMENT, is_required=True),
            "expires_at": Column(MOMENT, is_required=True),
        },
        indexes={
            "django_outbox_lease_pkey": "UNIQUE btree (name)",
        },
    ),
    "django_outbox_worker": Table(
        columns={
            "id": Column("uuid", is_required=True),
            "worker_id": Column("character varying(255)", is_required=True),
            "kind": Column("character varying(16)", is_required=True),
            "host": Column("character varying(255)", is_required=True),
            "pid": Column("integer", is_required=True),
            "queues": Column("jsonb", is_required=True, default="'[]'::jsonb"),
            "concurrency": Column("integer", is_required=True, default="0"),
            "running": Column("integer", is_required=True, default="0"),
            "started_at": Column(MOMENT, is_required=True, default="clock_timestamp()"),
            "last_seen_at": Column(MOMENT, is_required=True, default="clock_timestamp()"),
        },
        indexes={
            "django_outbox_worker_name": "btree (worker_id)",
            "django_outbox_worker_pkey": "UNIQUE btree (id)",
        },
        options={"fillfactor": "50"},
    ),
    "django_outbox_counter": Table(
        columns={
            "id": Column("bigint", is_required=True, is_identity=True),
            "minute": Column(MOMENT, is_required=True),
            "queue": Column("character varying(255)", is_required=True),
            "completed": Column("bigint", is_required=True, default="0"),
            "retried": Column("bigint", is_required=True, default="0"),
            "buried": Column("bigint", is_required=True, default="0"),
        },
        indexes={
            "django_outbox_counter_minute": "UNIQUE btree (minute, queue)",
            "django_outbox_counter_pkey": "UNIQUE btree (id)",
        },
        options={"fillfactor": "70"},
    ),
}
