-- What happened, as the database saw it. The first three tables are written by the publishers and
-- the handlers, the others by triggers on the outbox's tables. A trigger's row commits or vanishes
-- with what it is about, and its moments are on the database's clock.

-- The business row: committed with its message, or not at all. No message where a timer was left
-- as it was.
CREATE TABLE faults_publication (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key text NOT NULL UNIQUE,
    kind text NOT NULL,
    message_id bigint,
    timer_id text,
    due_at timestamptz NOT NULL
);
CREATE INDEX faults_publication_timer ON faults_publication (timer_id, id)
    WHERE timer_id IS NOT NULL;

CREATE TABLE faults_cancellation (message_id bigint NOT NULL);

CREATE TABLE faults_delivery (
    key text NOT NULL,
    message_id bigint NOT NULL,
    queue text NOT NULL,
    done boolean NOT NULL,
    intact boolean NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- In the order in which it happened; a timer that takes a new content is stored once more.
CREATE TABLE faults_stored (
    id bigint GENERATED ALWAYS AS IDENTITY,
    message_id bigint NOT NULL,
    queue text NOT NULL,
    key text,
    schedule text,
    boundary timestamptz
);

CREATE TABLE faults_removed (message_id bigint NOT NULL, had_lease boolean NOT NULL);

CREATE TABLE faults_breach (
    message_id bigint NOT NULL,
    what text NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE FUNCTION faults_note_stored() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO faults_stored (message_id, queue, key, schedule, boundary)
    SELECT id, queue, convert_from(payload, 'UTF8')::jsonb ->> 'key', headers ->> 'schedule',
        (headers ->> 'boundary')::timestamptz
    FROM stored;
    RETURN NULL;
END
$$;
CREATE TRIGGER faults_stored AFTER INSERT ON django_outbox_message
    REFERENCING NEW TABLE AS stored FOR EACH STATEMENT EXECUTE FUNCTION faults_note_stored();

CREATE FUNCTION faults_note_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO faults_stored (message_id, queue, key)
    VALUES (NEW.id, NEW.queue, convert_from(NEW.payload, 'UTF8')::jsonb ->> 'key');
    RETURN NULL;
END
$$;
CREATE TRIGGER faults_changed AFTER UPDATE OF payload ON django_outbox_message
    FOR EACH ROW WHEN (OLD.payload <> NEW.payload) EXECUTE FUNCTION faults_note_changed();

CREATE FUNCTION faults_note_removed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO faults_removed SELECT id, lease_token IS NOT NULL FROM removed;
    RETURN NULL;
END
$$;
CREATE TRIGGER faults_removed AFTER DELETE ON django_outbox_message
    REFERENCING OLD TABLE AS removed FOR EACH STATEMENT EXECUTE FUNCTION faults_note_removed();

CREATE FUNCTION faults_note_breach() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO faults_breach (message_id, what) VALUES (NEW.id, TG_ARGV[0]);
    RETURN NULL;
END
$$;
CREATE TRIGGER faults_two_leases AFTER UPDATE OF lease_token ON django_outbox_message
    FOR EACH ROW
    WHEN (OLD.lease_token <> NEW.lease_token AND OLD.lease_expires_at >= clock_timestamp())
    EXECUTE FUNCTION faults_note_breach('leased while another lease stood');
CREATE TRIGGER faults_early AFTER UPDATE OF lease_token ON django_outbox_message
    FOR EACH ROW
    WHEN (NEW.lease_token IS NOT NULL AND NEW.lease_token IS DISTINCT FROM OLD.lease_token
        AND NEW.next_attempt_at > clock_timestamp())
    EXECUTE FUNCTION faults_note_breach('leased before it was due');

-- Handlers of the other queues never fail of themselves. The disk is an exception: a statement that
-- it refuses is an error like any other, and the session goes on.
CREATE TRIGGER faults_charged AFTER UPDATE OF attempts_count ON django_outbox_message
    FOR EACH ROW
    WHEN (NEW.attempts_count > OLD.attempts_count
        AND NEW.queue NOT IN ('retrying', 'retrying_atomic', 'failing')
        AND COALESCE(NEW.last_error, '') NOT LIKE '%No space left on device%')
    EXECUTE FUNCTION faults_note_breach('charged an attempt');
