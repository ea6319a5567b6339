-- Triggers: triggers, schedules, inbound hooks, key-value collections, the outbox, deliveries and dead letters.

-- Triggers and their sources
-- --------------------------

create table triggers (
    id uuid primary key,
    tenant bigint not null,
    name text collate "C" not null,
    source text collate "C" not null,
    filter json not null,
    target json not null,
    mode text not null,
    retry json not null,
    max_attempts integer not null,
    enabled boolean not null,
    principal text not null,
    created_at timestamptz not null,
    updated_at timestamptz not null,
    fired bigint not null default 0,
    failed bigint not null default 0,
    loops_stopped bigint not null default 0,
    last_fired_at timestamptz,
    last_error text,
    next_at timestamptz,
    missed bigint not null default 0,
    last_missed_at timestamptz,
    unique (tenant, name)
);
create index triggers_tenant on triggers (tenant, id);
create index triggers_next on triggers (next_at, id) where next_at is not null;
comment on table triggers is 'Triggers: a source with a filter, and the target that a matching event starts.';
comment on column triggers.source is
    '`kv`, `cron`, `pubsub`, `queue`, `http`, `email`, `job`, `runtime` or `dead_letter`.';
comment on column triggers.filter is 'Which events match. For `cron`: the schedule.';
comment on column triggers.target is
    'What starts: a job template, an HTTP request, a script or an operation on a runtime.';
comment on column triggers.mode is '`async`, or `sync`: the caller that causes the event waits for the result.';
comment on column triggers.retry is 'Retry policy, copied from the defaults at creation.';
comment on column triggers.max_attempts is 'Maximum number of attempts of a run.';
comment on column triggers.principal is
    'Principal that registered the trigger. Its runs have the rights of this principal.';
comment on column triggers.fired is 'Number of started runs.';
comment on column triggers.failed is 'Number of runs that ended as dead letters before anything was started.';
comment on column triggers.loops_stopped is 'Number of runs that were skipped because of their depth.';
comment on column triggers.next_at is 'Next slot of the schedule. Null: no schedule, or disabled.';
comment on column triggers.missed is 'Number of slots that the policy for missed slots skipped.';
comment on column triggers.last_missed_at is 'Time at which a skipped slot was last detected.';

create table trigger_clock (
    id integer primary key check (id = 1),
    version bigint not null
);
comment on table trigger_clock is
    'Version of all triggers, in a single row. Each change of a trigger increments it. Transactions compare it with '
    'the version of the trigger cache of the node.';
comment on column trigger_clock.id is 'Always 1.';
insert into trigger_clock (id, version) values (1, 0);

create table cron_slots (
    trigger_id uuid not null,
    slot_at timestamptz not null,
    fired_at timestamptz not null,
    primary key (trigger_id, slot_at)
);
create index cron_slots_fired on cron_slots (fired_at);
comment on table cron_slots is
    'Fired slots of schedules, kept for 7 days. The primary key lets a slot fire at most once on any number of nodes.';
comment on column cron_slots.slot_at is 'Time of the slot by the schedule.';
comment on column cron_slots.fired_at is 'Time at which the slot fired.';

create table hook_receipts (
    trigger_id uuid not null,
    message text collate "C" not null,
    received_at timestamptz not null,
    primary key (trigger_id, message)
);
create index hook_receipts_received on hook_receipts (received_at);
comment on table hook_receipts is
    'Signed messages that inbound hooks accepted. A repeated message creates no new event.';
comment on column hook_receipts.message is
    'Id of the message. A second row has the id, a line feed and the SHA-256 of the body in hexadecimal.';

create table kv (
    tenant bigint not null,
    collection text collate "C" not null,
    key text collate "C" not null,
    value json not null,
    version bigint not null,
    created_at timestamptz not null,
    updated_at timestamptz not null,
    primary key (tenant, collection, key)
);
comment on table kv is 'Key-value collections.';
comment on column kv.version is 'Starts at 1. Each change of the value increments it.';

-- Outbox
-- ------

create table outbox (
    id uuid primary key,
    tenant bigint not null,
    trigger_id uuid not null,
    event_id uuid not null,
    source text collate "C" not null,
    op text collate "C" not null,
    depth integer not null,
    event json not null,
    data json not null,
    created_at timestamptz not null,
    due_at timestamptz not null,
    lease uuid,
    wait_s bigint,
    attempts json not null,
    unique (trigger_id, event_id)
);
create index outbox_due on outbox (due_at, id);
comment on table outbox is
    'Transactional outbox: one row per event and matching trigger, written in the transaction of the event. The '
    'dispatcher deletes the row in the transaction that starts the run.';
comment on column outbox.source is 'Source of the event, as in `triggers.source`.';
comment on column outbox.op is 'Operation of the event, for example `set` or `succeeded`.';
comment on column outbox.depth is 'Number of triggers that led to the event.';
comment on column outbox.event is 'The event without its data: {id, source, op, at, depth} and attributes.';
comment on column outbox.data is 'Data of the event, unchanged.';
comment on column outbox.due_at is
    'Time from which a dispatcher may take the row. While `lease` is set: the expiry of the lease.';
comment on column outbox.lease is 'Lease of the dispatcher that took the row. Null: not taken.';
comment on column outbox.wait_s is 'Last retry delay in seconds, without jitter.';
comment on column outbox.attempts is
    'Array of the failed attempts: {at, code, message, retryable}. `at` is in microseconds since 1970-01-01 UTC.';

create table trigger_runs (
    id uuid primary key,
    tenant bigint not null,
    trigger_id uuid not null,
    event_id uuid not null,
    attempt integer not null,
    outcome text collate "C" not null,
    at timestamptz not null,
    duration_ms bigint,
    script_id uuid,
    job uuid,
    delivery uuid,
    error json,
    result json,
    log json not null
);
create index trigger_runs_trigger on trigger_runs (trigger_id, id);
create index trigger_runs_event on trigger_runs (event_id, trigger_id);
create index trigger_runs_at on trigger_runs (at);
comment on table trigger_runs is 'Runs of scripts, with their logs, and runs of `sync` triggers. Kept for 7 days.';
comment on column trigger_runs.attempt is 'Number of the attempt.';
comment on column trigger_runs.outcome is '`done` (script), `job`, `delivery`, `failed` or `skipped`.';
comment on column trigger_runs.at is 'End of the run.';
comment on column trigger_runs.duration_ms is 'Run time of the script.';
comment on column trigger_runs.script_id is 'Hash of the source of the script. Null: not a script.';
comment on column trigger_runs.job is 'Job that the run created.';
comment on column trigger_runs.delivery is 'Delivery that the run created.';
comment on column trigger_runs.result is 'Return value of the script.';
comment on column trigger_runs.log is 'Array of the log lines of the script.';

-- Deliveries
-- ----------

create table endpoints (
    id bigint generated by default as identity primary key,
    tenant bigint not null,
    origin text collate "C" not null,
    failures bigint not null default 0,
    open_until timestamptz,
    last_error text,
    created_at timestamptz not null,
    unique (tenant, origin)
);
comment on table endpoints is 'Receivers of deliveries: one row per tenant and origin, with a circuit breaker.';
comment on column endpoints.origin is 'Scheme, host and port.';
comment on column endpoints.failures is 'Number of consecutive failures.';
comment on column endpoints.open_until is
    'Time until which the circuit breaker is open and nothing is sent. Null: closed.';

-- Retention deletes small batches from the old end of the table. An early vacuum keeps the scan for old rows short.
create table deliveries (
    seq bigint generated by default as identity primary key,
    id uuid not null unique,
    tenant bigint not null,
    endpoint bigint not null,
    source text collate "C" not null,
    op text collate "C" not null,
    job uuid,
    trigger_id uuid,
    event_id uuid,
    dead_letter uuid,
    letter uuid,
    principal text not null,
    depth integer not null,
    url text not null,
    method text not null,
    headers json not null,
    secrets json not null,
    body text not null,
    timeout_ms bigint not null,
    retry json not null,
    max_attempts integer not null,
    state text collate "C" not null,
    attempt integer not null default 0,
    failures integer not null default 0,
    tries_left integer not null,
    wait_s bigint,
    status integer,
    error text,
    created_at timestamptz not null,
    due_at timestamptz,
    leased_at timestamptz,
    give_up_at timestamptz not null,
    ended_at timestamptz
) with (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_insert_scale_factor = 0.05);
create index deliveries_due on deliveries (endpoint, due_at, seq) where due_at is not null;
create index deliveries_give_up on deliveries (give_up_at) where due_at is not null;
create index deliveries_tenant on deliveries (tenant, seq);
create index deliveries_state on deliveries (tenant, state, seq);
create index deliveries_job on deliveries (job, seq) where job is not null;
create index deliveries_ended on deliveries (state, ended_at) where ended_at is not null;
comment on table deliveries is
    'HTTP requests to send: state webhooks and requests of triggers. Written in the transaction of the event. A '
    'receiver can get a request more than once.';
comment on column deliveries.seq is 'Order of creation.';
comment on column deliveries.endpoint is 'Receiver (`endpoints.id`).';
comment on column deliveries.source is 'Source of the event, as in `triggers.source`.';
comment on column deliveries.op is 'Operation of the event. For a state webhook: the new state of the job.';
comment on column deliveries.job is 'Job of a state webhook.';
comment on column deliveries.trigger_id is 'Trigger that started the delivery. Null: a state webhook.';
comment on column deliveries.event_id is 'Event that caused the delivery. Null: a state webhook.';
comment on column deliveries.dead_letter is 'Dead letter that this delivery handles, for a trigger on dead letters.';
comment on column deliveries.letter is 'Dead letter that was written when this delivery failed.';
comment on column deliveries.principal is 'Principal of the job or of the trigger.';
comment on column deliveries.depth is
    'Number of triggers that led to the request. It is sent along, so that loops through HTTP end.';
comment on column deliveries.headers is 'Array of [name, value]. Fixed values of a trigger are encrypted.';
comment on column deliveries.secrets is
    'Array of encrypted secrets. Each one signs the request. Empty: the request is not signed.';
comment on column deliveries.body is 'Request body, sent unchanged.';
comment on column deliveries.state is '`pending`, `delivered` or `failed`.';
comment on column deliveries.attempt is 'Number of the last attempt. A redelivery continues the numbering.';
comment on column deliveries.failures is 'Number of failed attempts since the creation or the last redelivery.';
comment on column deliveries.tries_left is 'Number of attempts before the delivery fails.';
comment on column deliveries.wait_s is 'Last retry delay in seconds, without jitter.';
comment on column deliveries.status is 'HTTP status of the last attempt.';
comment on column deliveries.error is 'Error of the last attempt.';
comment on column deliveries.due_at is
    'Time of the next attempt. While `leased_at` is set: the expiry of the lease. Null: ended.';
comment on column deliveries.leased_at is 'Start of the attempt in progress. Null: none.';
comment on column deliveries.give_up_at is 'Time at which the delivery fails even if no attempt was possible.';

-- Retention deletes small batches from the old end of the table. An early vacuum keeps the scan for old rows short.
create table delivery_attempts (
    delivery uuid not null,
    attempt integer not null,
    at timestamptz not null,
    duration_ms bigint not null,
    status integer,
    error text,
    response text,
    primary key (delivery, attempt)
) with (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_insert_scale_factor = 0.05);
comment on table delivery_attempts is 'Attempts of deliveries.';
comment on column delivery_attempts.status is 'HTTP status. Null: no response.';
comment on column delivery_attempts.response is 'Beginning of the response.';

-- Dead letters
-- ------------

create table dead_letters (
    id uuid primary key,
    tenant bigint not null,
    event_id uuid not null,
    source text collate "C" not null,
    op text collate "C" not null,
    trigger_id uuid,
    script_id uuid,
    job uuid,
    queue text collate "C",
    kind text collate "C",
    error_code text collate "C" not null,
    payload json not null,
    work json,
    depth integer not null,
    attempts json not null,
    attempt_count integer not null,
    first_attempt_at timestamptz not null,
    last_attempt_at timestamptz not null,
    last_error json not null,
    created_at timestamptz not null,
    resolved_at timestamptz,
    resolution text check (resolution in ('replayed', 'ignored', 'handled_by_script', 'handler_failed')),
    resolved_by text,
    note text,
    replayed_as uuid
);
create index dead_letters_tenant on dead_letters (tenant, id);
create index dead_letters_open on dead_letters (tenant, id) where resolved_at is null;
create index dead_letters_resolved on dead_letters (resolved_at, id) where resolved_at is not null;
create index dead_letters_job on dead_letters (job) where job is not null;
comment on table dead_letters is
    'Dead letters: work that failed after all attempts. Unresolved ones are never deleted by age. The row has all '
    'data for a replay, also after its job is deleted.';
comment on column dead_letters.event_id is 'Event at the origin of the work. For an ordinary job: the id of the job.';
comment on column dead_letters.source is 'Source of the event, as in `triggers.source`.';
comment on column dead_letters.op is 'Operation of the event.';
comment on column dead_letters.trigger_id is 'Trigger that started the work. Null: an ordinary job or a manual replay.';
comment on column dead_letters.script_id is 'Script that failed: the hash of its source.';
comment on column dead_letters.job is 'Job that failed, or job that the failed work was about. Null: none.';
comment on column dead_letters.queue is 'Queue of the failed job. Null: the failed work is not a job.';
comment on column dead_letters.kind is 'Kind of the failed job. Null: the failed work is not a job.';
comment on column dead_letters.error_code is 'Code of the last error.';
comment on column dead_letters.payload is 'Payload of the work, unchanged.';
comment on column dead_letters.work is
    'What a replay creates besides the payload: the settings of the job, or the id of the delivery. Null: a replay '
    'repeats the event for the trigger.';
comment on column dead_letters.depth is 'Number of triggers that led to the work.';
comment on column dead_letters.attempts is
    'Array of all attempts: {at, code, message, retryable}. `at` is in microseconds since 1970-01-01 UTC.';
comment on column dead_letters.last_error is 'Error of the last attempt.';
comment on column dead_letters.resolution is
    '`replayed`, `ignored`, `handled_by_script` or `handler_failed`. Null: unresolved.';
comment on column dead_letters.resolved_by is 'Principal, trigger or operation that resolved the dead letter.';
comment on column dead_letters.note is 'Comment on the resolution.';
comment on column dead_letters.replayed_as is 'Job, delivery or event that the replay created.';
