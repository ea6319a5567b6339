-- Triggers: triggers, schedules, inbound hooks, key-value collections, the outbox, deliveries and dead letters.

-- Triggers and their sources
-- --------------------------

create table triggers (
    -- Triggers: a source with a filter, and the target that a matching event starts.

    id blob primary key not null,
    tenant integer not null,
    name text not null,
    -- `kv`, `cron`, `pubsub`, `queue`, `http`, `email`, `job`, `runtime` or `dead_letter`.
    source text not null,
    -- Which events match. For `cron`: the schedule.
    filter text not null,
    -- What starts: a job template, an HTTP request, a script or an operation on a runtime.
    target text not null,
    -- `async`, or `sync`: the caller that causes the event waits for the result.
    mode text not null,
    -- Retry policy, copied from the defaults at creation.
    retry text not null,
    -- Maximum number of attempts of a run.
    max_attempts integer not null,
    enabled integer not null,
    -- Principal that registered the trigger. Its runs have the rights of this principal.
    principal text not null,
    created_at integer not null,
    updated_at integer not null,
    -- Number of started runs.
    fired integer not null default 0,
    -- Number of runs that ended as dead letters before anything was started.
    failed integer not null default 0,
    -- Number of runs that were skipped because of their depth.
    loops_stopped integer not null default 0,
    last_fired_at integer,
    last_error text,
    -- Next slot of the schedule. Null: no schedule, or disabled.
    next_at integer,
    -- Number of slots that the policy for missed slots skipped.
    missed integer not null default 0,
    -- Time at which a skipped slot was last detected.
    last_missed_at integer,
    unique (tenant, name)
) without rowid;
create index triggers_tenant on triggers (tenant, id);
create index triggers_next on triggers (next_at, id) where next_at is not null;

create table trigger_clock (
    -- Version of all triggers, in a single row. Each change of a trigger increments it. Transactions compare it with
    -- the version of the trigger cache of the node.

    -- Always 1.
    id integer primary key check (id = 1),
    version integer not null
);
insert into trigger_clock (id, version) values (1, 0);

create table cron_slots (
    -- Fired slots of schedules, kept for 7 days. The primary key lets a slot fire at most once on any number of nodes.

    trigger_id blob not null,
    -- Time of the slot by the schedule.
    slot_at integer not null,
    -- Time at which the slot fired.
    fired_at integer not null,
    primary key (trigger_id, slot_at)
) without rowid;
create index cron_slots_fired on cron_slots (fired_at);

create table hook_receipts (
    -- Signed messages that inbound hooks accepted. A repeated message creates no new event.

    trigger_id blob not null,
    -- Id of the message. A second row has the id, a line feed and the SHA-256 of the body in hexadecimal.
    message text not null,
    received_at integer not null,
    primary key (trigger_id, message)
) without rowid;
create index hook_receipts_received on hook_receipts (received_at);

create table kv (
    -- Key-value collections.

    tenant integer not null,
    collection text not null,
    key text not null,
    value text not null,
    -- Starts at 1. Each change of the value increments it.
    version integer not null,
    created_at integer not null,
    updated_at integer not null,
    primary key (tenant, collection, key)
) without rowid;

-- Outbox
-- ------

create table outbox (
    -- Transactional outbox: one row per event and matching trigger, written in the transaction of the event. The
    -- dispatcher deletes the row in the transaction that starts the run.

    id blob primary key not null,
    tenant integer not null,
    trigger_id blob not null,
    event_id blob not null,
    -- Source of the event, as in `triggers.source`.
    source text not null,
    -- Operation of the event, for example `set` or `succeeded`.
    op text not null,
    -- Number of triggers that led to the event.
    depth integer not null,
    -- The event without its data: {id, source, op, at, depth} and attributes.
    event text not null,
    -- Data of the event, unchanged.
    data text not null,
    created_at integer not null,
    -- Time from which a dispatcher may take the row. While `lease` is set: the expiry of the lease.
    due_at integer not null,
    -- Lease of the dispatcher that took the row. Null: not taken.
    lease blob,
    -- Last retry delay in seconds, without jitter.
    wait_s integer,
    -- Array of the failed attempts: {at, code, message, retryable}. `at` is in microseconds since 1970-01-01 UTC.
    attempts text not null,
    unique (trigger_id, event_id)
) without rowid;
create index outbox_due on outbox (due_at, id);

create table trigger_runs (
    -- Runs of scripts, with their logs, and runs of `sync` triggers. Kept for 7 days.

    id blob primary key not null,
    tenant integer not null,
    trigger_id blob not null,
    event_id blob not null,
    -- Number of the attempt.
    attempt integer not null,
    -- `done` (script), `job`, `delivery`, `failed` or `skipped`.
    outcome text not null,
    -- End of the run.
    at integer not null,
    -- Run time of the script.
    duration_ms integer,
    -- Hash of the source of the script. Null: not a script.
    script_id blob,
    -- Job that the run created.
    job blob,
    -- Delivery that the run created.
    delivery blob,
    error text,
    -- Return value of the script.
    result text,
    -- Array of the log lines of the script.
    log text not null
) without rowid;
create index trigger_runs_trigger on trigger_runs (trigger_id, id);
create index trigger_runs_event on trigger_runs (event_id, trigger_id);
create index trigger_runs_at on trigger_runs (at);

-- Deliveries
-- ----------

create table endpoints (
    -- Receivers of deliveries: one row per tenant and origin, with a circuit breaker.

    id integer primary key autoincrement,
    tenant integer not null,
    -- Scheme, host and port.
    origin text not null,
    -- Number of consecutive failures.
    failures integer not null default 0,
    -- Time until which the circuit breaker is open and nothing is sent. Null: closed.
    open_until integer,
    last_error text,
    created_at integer not null,
    unique (tenant, origin)
);

create table deliveries (
    -- HTTP requests to send: state webhooks and requests of triggers. Written in the transaction of the event. A
    -- receiver can get a request more than once.

    -- Order of creation.
    seq integer primary key autoincrement,
    id blob not null unique,
    tenant integer not null,
    -- Receiver (`endpoints.id`).
    endpoint integer not null,
    -- Source of the event, as in `triggers.source`.
    source text not null,
    -- Operation of the event. For a state webhook: the new state of the job.
    op text not null,
    -- Job of a state webhook.
    job blob,
    -- Trigger that started the delivery. Null: a state webhook.
    trigger_id blob,
    -- Event that caused the delivery. Null: a state webhook.
    event_id blob,
    -- Dead letter that this delivery handles, for a trigger on dead letters.
    dead_letter blob,
    -- Dead letter that was written when this delivery failed.
    letter blob,
    -- Principal of the job or of the trigger.
    principal text not null,
    -- Number of triggers that led to the request. It is sent along, so that loops through HTTP end.
    depth integer not null,
    url text not null,
    method text not null,
    -- Array of [name, value]. Fixed values of a trigger are encrypted.
    headers text not null,
    -- Array of encrypted secrets. Each one signs the request. Empty: the request is not signed.
    secrets text not null,
    -- Request body, sent unchanged.
    body text not null,
    timeout_ms integer not null,
    retry text not null,
    max_attempts integer not null,
    -- `pending`, `delivered` or `failed`.
    state text not null,
    -- Number of the last attempt. A redelivery continues the numbering.
    attempt integer not null default 0,
    -- Number of failed attempts since the creation or the last redelivery.
    failures integer not null default 0,
    -- Number of attempts before the delivery fails.
    tries_left integer not null,
    -- Last retry delay in seconds, without jitter.
    wait_s integer,
    -- HTTP status of the last attempt.
    status integer,
    -- Error of the last attempt.
    error text,
    created_at integer not null,
    -- Time of the next attempt. While `leased_at` is set: the expiry of the lease. Null: ended.
    due_at integer,
    -- Start of the attempt in progress. Null: none.
    leased_at integer,
    -- Time at which the delivery fails even if no attempt was possible.
    give_up_at integer not null,
    ended_at integer
);
create index deliveries_due on deliveries (endpoint, due_at, seq) where due_at is not null;
create index deliveries_give_up on deliveries (give_up_at) where due_at is not null;
create index deliveries_tenant on deliveries (tenant, seq);
create index deliveries_state on deliveries (tenant, state, seq);
create index deliveries_job on deliveries (job, seq) where job is not null;
create index deliveries_ended on deliveries (state, ended_at) where ended_at is not null;

create table delivery_attempts (
    -- Attempts of deliveries.

    delivery blob not null,
    attempt integer not null,
    at integer not null,
    duration_ms integer not null,
    -- HTTP status. Null: no response.
    status integer,
    error text,
    -- Beginning of the response.
    response text,
    primary key (delivery, attempt)
) without rowid;

-- Dead letters
-- ------------

create table dead_letters (
    -- Dead letters: work that failed after all attempts. Unresolved ones are never deleted by age. The row has all data
    -- for a replay, also after its job is deleted.

    id blob primary key not null,
    tenant integer not null,
    -- Event at the origin of the work. For an ordinary job: the id of the job.
    event_id blob not null,
    -- Source of the event, as in `triggers.source`.
    source text not null,
    -- Operation of the event.
    op text not null,
    -- Trigger that started the work. Null: an ordinary job or a manual replay.
    trigger_id blob,
    -- Script that failed: the hash of its source.
    script_id blob,
    -- Job that failed, or job that the failed work was about. Null: none.
    job blob,
    -- Queue of the failed job. Null: the failed work is not a job.
    queue text,
    -- Kind of the failed job. Null: the failed work is not a job.
    kind text,
    -- Code of the last error.
    error_code text not null,
    -- Payload of the work, unchanged.
    payload text not null,
    -- What a replay creates besides the payload: the settings of the job, or the id of the delivery. Null: a replay
    -- repeats the event for the trigger.
    work text,
    -- Number of triggers that led to the work.
    depth integer not null,
    -- Array of all attempts: {at, code, message, retryable}. `at` is in microseconds since 1970-01-01 UTC.
    attempts text not null,
    attempt_count integer not null,
    first_attempt_at integer not null,
    last_attempt_at integer not null,
    -- Error of the last attempt.
    last_error text not null,
    created_at integer not null,
    resolved_at integer,
    -- `replayed`, `ignored`, `handled_by_script` or `handler_failed`. Null: unresolved.
    resolution text check (resolution in ('replayed', 'ignored', 'handled_by_script', 'handler_failed')),
    -- Principal, trigger or operation that resolved the dead letter.
    resolved_by text,
    -- Comment on the resolution.
    note text,
    -- Job, delivery or event that the replay created.
    replayed_as blob
) without rowid;
create index dead_letters_tenant on dead_letters (tenant, id);
create index dead_letters_open on dead_letters (tenant, id) where resolved_at is null;
create index dead_letters_resolved on dead_letters (resolved_at, id) where resolved_at is not null;
create index dead_letters_job on dead_letters (job) where job is not null;
