create table tenants (
    id integer primary key,
    name text not null unique,
    created_at integer not null
);
insert into tenants (id, name, created_at) values (1, 'system', cast((julianday('now') - 2440587.5) * 86400000000 as integer)), (2, 'default', cast((julianday('now') - 2440587.5) * 86400000000 as integer));

-- What a queue was told. A queue without a row here has the defaults.
create table queues (
    tenant integer not null,
    name text not null,
    concurrency integer,
    per_key integer,
    rate_per_s real,
    starvation_s integer,
    settings text,
    paused_at integer,
    paused_by text,
    paused_reason text,
    updated_at integer not null,
    primary key (tenant, name)
) without rowid;

-- Waiting jobs stand in lanes: everything a worker chooses by is in the lane, so that a claim reads only heads.
-- `guarded` lanes hold jobs with a subject or a concurrency key, which must take holds before they run.
create table lanes (
    lane integer primary key autoincrement,
    tenant integer not null,
    queue text not null,
    kind text not null,
    priority integer not null,
    affinity text not null,
    guarded integer not null,
    unique (tenant, queue, kind, priority, affinity, guarded)
);

-- Live jobs. `due_at` is set while scheduled, `parked` while held back, `worker` while claimed; `held` when it has rows
-- in `holds`.
create table jobs (
    id blob primary key not null,
    tenant integer not null,
    lane integer not null,
    state text not null,
    run_at integer not null,
    due_at integer,
    parked text,
    worker blob,
    claim blob,
    held integer not null default 0,
    epoch integer not null default 0,
    attempt integer not null default 0,
    max_attempts integer not null,
    started_at integer,
    begun_at integer,
    deadline_at integer,
    wait_s integer,
    timeout_s integer,
    depth integer not null default 0,
    progress real,
    version integer not null default 1,
    created_at integer not null,
    updated_at integer not null,
    principal text not null,
    payload text not null,
    retry text,
    subject text,
    process text,
    run text,
    unique_key text,
    unique_until integer,
    concurrency_key text,
    tags text,
    phase text,
    error text,
    webhook text,
    parent blob,
    triggered_by text
) without rowid;
-- Only jobs that wait: a claim never walks over what others have taken. On PostgreSQL the claimed stay in it, so that a
-- claim changes no column of an index or of its condition and is a heap-only update.
create index jobs_ready on jobs (lane, run_at, id) where due_at is null and parked is null and worker is null;
create index jobs_due on jobs (due_at, id) where due_at is not null;
create index jobs_parked on jobs (tenant, parked, run_at, id) where parked is not null;
create index jobs_held_back on jobs (lane, id) where due_at is not null or parked is not null;
create index jobs_deadline on jobs (deadline_at, id) where deadline_at is not null;
create index jobs_subject on jobs (tenant, subject, id) where subject is not null;
create index jobs_run on jobs (tenant, run, id) where run is not null;

-- Ended jobs, append-only until pruned.
create table ended (
    id blob primary key not null,
    tenant integer not null,
    lane integer not null,
    state text not null,
    run_at integer not null,
    worker blob,
    epoch integer not null,
    attempt integer not null,
    max_attempts integer not null,
    started_at integer,
    begun_at integer,
    finished_at integer not null,
    wait_s integer,
    timeout_s integer,
    depth integer not null,
    progress real,
    version integer not null,
    created_at integer not null,
    principal text not null,
    actor text,
    payload text not null,
    result text,
    retry text,
    subject text,
    process text,
    run text,
    unique_key text,
    concurrency_key text,
    tags text,
    phase text,
    error text,
    error_code text,
    webhook text,
    parent blob,
    retried_as blob,
    triggered_by text
) without rowid;
create index ended_lane on ended (lane, id);
create index ended_unsuccessful on ended (lane, state, id) where state <> 'succeeded';
create index ended_subject on ended (tenant, subject, id) where subject is not null;
create index ended_run on ended (tenant, run, id) where run is not null;
create index ended_unique_key on ended (tenant, unique_key, id) where unique_key is not null;
create index ended_error_code on ended (tenant, error_code, id) where error_code is not null;

-- Jobs with their lanes, for people and for reading: both views have the same columns.
create view live_jobs as
select j.id, j.tenant, l.queue, l.kind, l.priority, l.affinity, l.guarded, j.state, j.payload, j.run_at, j.attempt,
    j.max_attempts, j.epoch, j.worker, j.started_at, null as finished_at, j.created_at, j.updated_at,
    j.timeout_s, j.retry, j.subject, j.process, j.run, j.unique_key, j.concurrency_key, j.tags, j.phase, j.progress,
    null as result, j.error, j.webhook, j.parent, null as retried_as, j.principal, null as actor,
    j.triggered_by, j.depth, j.version, j.parked, j.lane
from jobs j join lanes l on l.lane = j.lane;
create view ended_jobs as
select e.id, e.tenant, l.queue, l.kind, l.priority, l.affinity, l.guarded, e.state, e.payload, e.run_at, e.attempt,
    e.max_attempts, e.epoch, e.worker, e.started_at, e.finished_at, e.created_at, e.finished_at as updated_at,
    e.timeout_s, e.retry, e.subject, e.process, e.run, e.unique_key, e.concurrency_key, e.tags, e.phase, e.progress,
    e.result, e.error, e.webhook, e.parent, e.retried_as, e.principal, e.actor,
    e.triggered_by, e.depth, e.version, null as parked, e.lane
from ended e join lanes l on l.lane = e.lane;

create table job_tags (
    tenant integer not null,
    tag text not null,
    job blob not null,
    primary key (tenant, tag, job)
) without rowid;

-- Attempts that ended without ending their job, and the last word on jobs that were pruned. The current attempt of a
-- live job and the last of an ended one are told by the job's own row.
create table history (
    job blob not null,
    epoch integer not null,
    event text not null,
    tenant integer not null,
    lane integer not null,
    at integer not null,
    enqueued_at integer not null,
    started_at integer,
    attempt integer not null,
    worker blob,
    actor text,
    cause text,
    subject text,
    process text,
    primary key (job, epoch, event)
) without rowid;
create index history_at on history (at, job);
create index history_subject on history (tenant, subject, at) where subject is not null;

create table workers (
    id blob primary key not null,
    tenant integer not null,
    name text not null,
    queues text not null,
    kinds text,
    affinities text,
    affinity text,
    lease_ms integer not null,
    lease_until integer not null,
    draining integer not null,
    registered_at integer not null,
    last_claim_at integer,
    dead_at integer
) without rowid;
create index workers_lease on workers (lease_until) where dead_at is null;

-- One row per call of claim: which jobs it handed out, and how many of them are still with the worker.
create table claims (
    claim blob primary key not null,
    tenant integer not null,
    worker blob not null,
    jobs text not null,
    remaining integer not null,
    at integer not null
) without rowid;
create index claims_worker on claims (worker);

-- Claims the server ended under a worker's hands: it is told with its heartbeat until it answers or dies.
create table revocations (
    worker blob not null,
    job blob not null,
    tenant integer not null,
    epoch integer not null,
    at integer not null,
    primary key (worker, job, epoch)
) without rowid;

-- Which claim holds what: a subject, a concurrency key, a place in a queue with a limit. A job may be in two workers'
-- hands for a while, when the first has not let go yet: each of them holds.
create table holds (
    tenant integer not null,
    scope text not null,
    job blob not null,
    epoch integer not null,
    primary key (tenant, scope, job, epoch)
) without rowid;
create index holds_job on holds (job);

create table rates (
    tenant integer not null,
    queue text not null,
    tokens real not null,
    at integer not null,
    primary key (tenant, queue)
) without rowid;

create table unique_keys (
    tenant integer not null,
    queue text not null,
    key text not null,
    job blob not null,
    until integer,
    primary key (tenant, queue, key)
) without rowid;
create index unique_keys_until on unique_keys (until) where until is not null;

create table idempotency (
    tenant integer not null,
    key text not null,
    body_hash blob not null,
    jobs text not null,
    created_at integer not null,
    primary key (tenant, key)
) without rowid;
create index idempotency_created_at on idempotency (created_at);

-- Each commit appends what it changed; a task folds the rows into `counters`. Nobody waits for anybody's row.
create table counter_deltas (
    id integer primary key autoincrement,
    tenant integer not null,
    queue text not null,
    scheduled integer not null,
    queued integer not null,
    running integer not null,
    succeeded integer not null,
    failed integer not null,
    canceled integer not null,
    swaps_made integer not null,
    swaps_avoided integer not null
);
create table counters (
    tenant integer not null,
    queue text not null,
    scheduled integer not null,
    queued integer not null,
    running integer not null,
    succeeded integer not null,
    failed integer not null,
    canceled integer not null,
    swaps_made integer not null,
    swaps_avoided integer not null,
    primary key (tenant, queue)
) without rowid;

create table artifacts (
    job blob not null,
    name text not null,
    tenant integer not null,
    size integer not null,
    content_type text not null,
    sha256 blob not null,
    content blob,
    location text,
    created_at integer not null,
    primary key (job, name)
) without rowid;

-- Blobs that no row names any more, waiting to be deleted from their folder or bucket.
create table blob_garbage (
    location text primary key not null,
    since integer not null
);

-- What a worker said of a job that its state does not tell.
create table signals (
    job blob primary key not null,
    tenant integer not null,
    summary text,
    eta_s real,
    last_known_outcome text,
    next_actions text,
    diagnostics text,
    payload text,
    updated_at integer not null
) without rowid;

-- Events that someone asked for, written by the transaction in which they happened.
create table outbox (
    id blob primary key not null,
    tenant integer not null,
    source text not null,
    op text not null,
    job blob,
    body text not null,
    created_at integer not null,
    due_at integer not null
);
create index outbox_due on outbox (due_at, id);

-- Since when service has been up without a gap, for leases after an outage.
create table service (
    id integer primary key check (id = 1),
    since integer not null,
    beat_at integer not null
);
insert into service (id, since, beat_at) values (1, cast((julianday('now') - 2440587.5) * 86400000000 as integer), cast((julianday('now') - 2440587.5) * 86400000000 as integer));

create table prunings (
    id integer primary key autoincrement,
    at integer not null,
    kind text not null,
    rows_pruned integer not null,
    why text not null
);

-- Rows a task could not deal with, set aside so that they never stop the others.
create table quarantine (
    task text not null,
    id blob not null,
    error text not null,
    since integer not null,
    primary key (task, id)
);
