-- Queue: queues, lanes, jobs, history, workers, claims, holds, keys, counters, artifacts and synchronous calls.

-- Queues and lanes
-- ----------------

create table queues (
    -- Settings of queues. A queue without a row has the default settings and is not paused.

    tenant integer not null,
    name text not null,
    -- Maximum number of running jobs. Null: unlimited.
    concurrency integer,
    -- Maximum number of running jobs per concurrency key. Null: 1.
    per_key integer,
    -- Maximum number of started jobs per second. Null: unlimited.
    rate_per_s real,
    -- Starvation bound: a job of another affinity that waits longer precedes the jobs of the affinity that the worker
    -- holds. Null: 300.
    starvation_s integer,
    -- Other settings: `retry`, `timeout_s`, `retention_s`, `phases`, `webhook` and, per kind, `kinds`.
    settings text,
    -- Start of the pause. Null: not paused. Claims skip the lanes of a paused queue.
    paused_at integer,
    -- Principal that paused the queue.
    paused_by text,
    paused_reason text,
    updated_at integer not null,
    primary key (tenant, name)
) without rowid;

create table lanes (
    -- Lanes: one row per combination of the values by which a claim selects jobs. A job stores its lane only, and a
    -- claim reads the first jobs of each lane that the worker serves. Lanes are inserted on first use and never change.

    -- Id of the lane.
    lane integer primary key autoincrement,
    tenant integer not null,
    queue text not null,
    kind text not null,
    -- Jobs with a higher value are claimed first.
    priority integer not null,
    -- Affinity of the jobs, for example a model. Empty: none.
    affinity text not null,
    -- True if the jobs have a subject or a concurrency key. Such a job acquires holds before it starts.
    guarded integer not null,
    unique (tenant, queue, kind, priority, affinity, guarded)
);

-- Jobs
-- ----

-- The table has row ids, so that a claim updates rows in place.
create table jobs (
    -- Live jobs. A job that ends moves to `ended`. Queue, kind, priority and affinity are in `lanes`.

    -- UUIDv7: ids sort by the time of creation.
    id blob primary key not null,
    tenant integer not null,
    -- Lane of the job (`lanes.lane`).
    lane integer not null,
    -- `scheduled`, `queued`, `loading` or `working`.
    state text not null,
    -- Earliest time of the next attempt. The jobs of a lane are claimed in this order. A job that a worker releases or
    -- loses keeps its value and so its position.
    run_at integer not null,
    -- Equal to `run_at` while the job is scheduled, else null.
    due_at integer,
    -- Scope that blocks the job: a scope of `holds`, or `backoff <process> <subject>`. Claims skip the job until the
    -- scope is free. Null: not blocked.
    parked text,
    -- Worker that holds the claim. Null while the job waits.
    worker blob,
    -- Claim call that assigned the job (`claims.claim`). Null while the job waits.
    claim blob,
    -- True if the claim has rows in `holds`.
    held integer not null default 0,
    -- Fencing token. Each claim increments it. An update with a stale epoch is rejected.
    epoch integer not null default 0,
    -- Number of started attempts. A release or a snooze takes its attempt back.
    attempt integer not null default 0,
    max_attempts integer not null,
    -- Start of the current attempt: the time of the claim.
    started_at integer,
    -- Time at which the worker reported that the affinity is loaded and the work starts. Null: not reported.
    begun_at integer,
    -- Time at which the current attempt times out. Null: no timeout.
    deadline_at integer,
    -- Last retry delay in seconds, without jitter.
    wait_s integer,
    -- Timeout of an attempt. Null: the setting of the queue applies.
    timeout_s integer,
    -- Number of triggers that led to the job.
    depth integer not null default 0,
    -- Progress that the worker reported, from 0 to 1.
    progress real,
    -- Incremented by every change of the job and of its signal.
    version integer not null default 1,
    created_at integer not null,
    updated_at integer not null,
    -- Principal that created the job. For the SQL function `enqueue`: the PostgreSQL role.
    principal text not null,
    payload text not null,
    -- Retry policy of the job. Null: the policy of the queue applies.
    retry text,
    -- Subject that the job works on.
    subject text,
    -- Process that the job belongs to. A job with a process has a subject.
    process text,
    -- Name of the group of jobs that the job belongs to.
    run text,
    -- Unique key in the queue. See `unique_keys`.
    unique_key text,
    -- Expiry of the unique key. Null: the end of the job releases the key.
    unique_until integer,
    -- Jobs of a queue with the same key run at most `queues.per_key` at a time.
    concurrency_key text,
    -- Array of tags. `job_tags` has the same tags.
    tags text,
    -- Current phase, as the worker reported it.
    phase text,
    -- Error of the last failed attempt.
    error text,
    -- Receiver of state changes: {url, secrets}, with encrypted secrets. A claim sets {"queue": true} if only the queue
    -- has a webhook.
    webhook text,
    -- Job that this job retries or replays.
    parent blob,
    -- Origin of the job: `trigger:...`, `script:...`, `replay:...`, `process:...`, `batch:...`, `call`, `operation` or
    -- `sql`. Null: an ordinary enqueue.
    triggered_by text
);
-- Claimable jobs of a lane in claim order. A claim removes its jobs from the index.
create index jobs_ready on jobs (lane, run_at, id) where due_at is null and parked is null and worker is null;
create index jobs_due on jobs (due_at, id) where due_at is not null;
create index jobs_parked on jobs (tenant, parked, run_at, id) where parked is not null;
-- Scheduled and parked jobs of a lane, for listings.
create index jobs_held_back on jobs (lane, id) where due_at is not null or parked is not null;
create index jobs_deadline on jobs (deadline_at, id) where deadline_at is not null;
create index jobs_subject on jobs (tenant, subject, id) where subject is not null;
create index jobs_run on jobs (tenant, run, id) where run is not null;

create table ended (
    -- Ended jobs. A row stays unchanged, except for `retried_as`, until the retention of its queue deletes it. The
    -- columns of `jobs` have the value that they had at the end of the job.

    id blob primary key not null,
    tenant integer not null,
    lane integer not null,
    -- `succeeded`, `failed` or `canceled`.
    state text not null,
    run_at integer not null,
    -- Worker of the last attempt.
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
    -- Principal that canceled the job.
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
    -- Code of the error that failed the job.
    error_code text,
    webhook text,
    parent blob,
    -- Job that a manual retry created from this job.
    retried_as blob,
    triggered_by text
) without rowid;
create index ended_lane on ended (lane, id);
create index ended_unsuccessful on ended (lane, state, id) where state <> 'succeeded';
create index ended_subject on ended (tenant, subject, id) where subject is not null;
create index ended_run on ended (tenant, run, id) where run is not null;
create index ended_unique_key on ended (tenant, unique_key, id) where unique_key is not null;
create index ended_error_code on ended (tenant, error_code, id) where error_code is not null;

create view live_jobs as
-- Live jobs with the columns of their lane. The columns are the same as in `ended_jobs`.
select j.id, j.tenant, l.queue, l.kind, l.priority, l.affinity, l.guarded, j.state, j.payload, j.run_at, j.attempt,
    j.max_attempts, j.epoch, j.worker, j.started_at, null as finished_at, j.created_at, j.updated_at,
    j.timeout_s, j.retry, j.subject, j.process, j.run, j.unique_key, j.concurrency_key, j.tags, j.phase, j.progress,
    null as result, j.error, j.webhook, j.parent, null as retried_as, j.principal, null as actor,
    j.triggered_by, j.depth, j.version, j.parked, j.lane
from jobs j join lanes l on l.lane = j.lane;

create view ended_jobs as
-- Ended jobs with the columns of their lane. The columns are the same as in `live_jobs`.
select e.id, e.tenant, l.queue, l.kind, l.priority, l.affinity, l.guarded, e.state, e.payload, e.run_at, e.attempt,
    e.max_attempts, e.epoch, e.worker, e.started_at, e.finished_at, e.created_at, e.finished_at as updated_at,
    e.timeout_s, e.retry, e.subject, e.process, e.run, e.unique_key, e.concurrency_key, e.tags, e.phase, e.progress,
    e.result, e.error, e.webhook, e.parent, e.retried_as, e.principal, e.actor,
    e.triggered_by, e.depth, e.version, null as parked, e.lane
from ended e join lanes l on l.lane = e.lane;

create table job_tags (
    -- Tags of live and ended jobs, for listings by tag.

    tenant integer not null,
    tag text not null,
    job blob not null,
    primary key (tenant, tag, job)
) without rowid;

create table history (
    -- Attempts that did not end their job, and the end of deleted jobs. The current attempt of a live job and the last
    -- attempt of an ended job are in the row of the job.

    job blob not null,
    -- Fencing token of the attempt.
    epoch integer not null,
    -- `failed`, `expired`, `released` or `snoozed`; `loop_stopped` if a trigger was skipped. For a deleted job:
    -- `finished`, `failed` or `canceled`.
    event text not null
        check (event in ('finished', 'failed', 'canceled', 'expired', 'released', 'snoozed', 'loop_stopped')),
    tenant integer not null,
    lane integer not null,
    -- End of the attempt.
    at integer not null,
    -- Creation of the job.
    enqueued_at integer not null,
    -- Start of the attempt. Null: the attempt did not start.
    started_at integer,
    -- Number of the attempt.
    attempt integer not null,
    worker blob,
    -- Principal that ended the attempt, if the worker did not.
    actor text,
    -- Code of the error.
    cause text,
    subject text,
    process text,
    -- Error of the attempt.
    error text,
    -- Principal that created the job. Set for deleted jobs only.
    principal text,
    -- Origin of the job, as in `jobs.triggered_by`. Set for deleted jobs only.
    triggered_by text,
    primary key (job, epoch, event)
) without rowid;
create index history_at on history (at, job);
create index history_subject on history (tenant, subject, at) where subject is not null;

-- Workers and claims
-- ------------------

create table workers (
    -- Registered workers. The lease belongs to the worker and covers all its claims.

    id blob primary key not null,
    tenant integer not null,
    -- Name that the worker reported. Not unique.
    name text not null,
    -- Array of the queues that the worker serves.
    queues text not null,
    -- Array of the kinds that the worker serves. Null: all.
    kinds text,
    -- Array of the affinities that the worker serves. Null: all.
    affinities text,
    -- Affinity that the worker holds: the last one that it reported or was assigned.
    affinity text,
    -- Length of the lease.
    lease_ms integer not null,
    -- Expiry of the lease. A worker with an expired lease stays dead, even if it reports again.
    lease_until integer not null,
    -- True if the worker receives no more jobs.
    draining integer not null,
    registered_at integer not null,
    -- Last claim that returned jobs, accurate to about one second.
    last_claim_at integer,
    -- Time at which the sweep marked the worker as dead. Null: not marked.
    dead_at integer
) without rowid;
create index workers_lease on workers (lease_until) where dead_at is null;

create table claims (
    -- Claim calls with jobs that are still claimed. The sweep finds the jobs of a dead worker here.

    -- Id of the claim call.
    claim blob primary key not null,
    tenant integer not null,
    worker blob not null,
    -- Array of the ids of the assigned jobs.
    jobs text not null,
    -- Number of these jobs that are still claimed. The row is deleted when it reaches 0.
    remaining integer not null,
    -- Time of the claim.
    at integer not null
) without rowid;
create index claims_worker on claims (worker);

create table revocations (
    -- Claims that the server ended while the worker still works on the job, after a cancel or a timeout. The heartbeat
    -- reports them until the worker answers or dies. Their holds are kept until then.

    worker blob not null,
    job blob not null,
    tenant integer not null,
    -- Fencing token of the ended claim.
    epoch integer not null,
    -- Time at which the server ended the claim.
    at integer not null,
    primary key (worker, job, epoch)
) without rowid;

create table holds (
    -- Locks that claims hold. Two claims of one job can hold a scope at the same time while a revoked worker has not
    -- answered.

    tenant integer not null,
    -- Locked resource: `subject <process or kind> <subject>`, `key <queue> <concurrency key>` or `queue <queue>`. A
    -- queue has such rows only with a concurrency limit.
    scope text not null,
    job blob not null,
    -- Fencing token of the claim.
    epoch integer not null,
    primary key (tenant, scope, job, epoch)
) without rowid;
create index holds_job on holds (job);

create table rates (
    -- Token buckets of queues with a rate limit.

    tenant integer not null,
    queue text not null,
    -- Available tokens at the time `at`. A started job takes one.
    tokens real not null,
    -- Time of the last calculation of `tokens`.
    at integer not null,
    primary key (tenant, queue)
) without rowid;

-- Keys
-- ----

create table unique_keys (
    -- Unique keys in use. An enqueue with such a key returns the existing job.

    tenant integer not null,
    queue text not null,
    key text not null,
    job blob not null,
    -- Expiry of the key. Null: the end of the job releases it.
    until integer,
    primary key (tenant, queue, key)
) without rowid;
create index unique_keys_until on unique_keys (until) where until is not null;

create table idempotency (
    -- Idempotency keys of requests and events, valid for 24 hours. A repeated request gets the recorded response.

    tenant integer not null,
    -- Idempotency key after a prefix with its scope, for example the id of the token.
    key text not null,
    -- SHA-256 of the request body. The same key with another body is rejected.
    body_hash blob not null,
    -- Recorded response: the created jobs or the id of the event.
    jobs text not null,
    created_at integer not null,
    primary key (tenant, key)
) without rowid;
create index idempotency_created_at on idempotency (created_at);

-- Counters
-- --------

create table counter_deltas (
    -- Changes of the counters, appended by each transaction. A task adds them to `counters` and deletes them.
    -- Concurrent transactions never update the same counter row.

    id integer primary key autoincrement,
    tenant integer not null,
    queue text not null,
    -- Change of the number of scheduled jobs. The other counts are changes as well.
    scheduled integer not null,
    queued integer not null,
    running integer not null,
    succeeded integer not null,
    failed integer not null,
    canceled integer not null,
    -- Change of `counters.swaps_made`.
    swaps_made integer not null,
    -- Change of `counters.swaps_avoided`.
    swaps_avoided integer not null
);

create table counters (
    -- Job counts per queue. The current value is the sum of this row and the rows of `counter_deltas`.

    tenant integer not null,
    queue text not null,
    -- Number of scheduled jobs.
    scheduled integer not null,
    -- Number of queued jobs.
    queued integer not null,
    -- Number of loading and working jobs.
    running integer not null,
    -- Number of succeeded jobs since the first job of the queue.
    succeeded integer not null,
    -- Number of failed jobs since the first job of the queue.
    failed integer not null,
    -- Number of canceled jobs since the first job of the queue.
    canceled integer not null,
    -- Number of claims that changed the affinity of their worker.
    swaps_made integer not null,
    -- Number of jobs that were claimed before older jobs of another affinity.
    swaps_avoided integer not null,
    primary key (tenant, queue)
) without rowid;

create table throughput (
    -- Jobs per minute and queue of the last 24 hours. Written by the task that adds up `counter_deltas`.

    tenant integer not null,
    -- Start of the minute.
    minute_at integer not null,
    queue text not null,
    -- Number of enqueued jobs.
    enqueued integer not null,
    -- Number of succeeded jobs.
    succeeded integer not null,
    -- Number of failed jobs.
    failed integer not null,
    primary key (tenant, minute_at, queue)
) without rowid;
create index throughput_minute on throughput (minute_at);

-- Artifacts
-- ---------

create table artifacts (
    -- Artifacts: named files of jobs. A row exists only for a complete upload.

    job blob not null,
    name text not null,
    tenant integer not null,
    -- Size in bytes.
    size integer not null,
    content_type text not null,
    -- SHA-256 of the content.
    sha256 blob not null,
    -- Content of an artifact of at most 64 KiB. Null: the content is at `location`.
    content blob,
    -- Name of the blob in the artifact storage. Null: the content is in the row.
    location text,
    -- Epoch of the claim that uploaded the artifact, or of the last claim before an upload outside a claim. A later claim
    -- replaces an artifact of the same name.
    epoch integer not null default 0,
    created_at integer not null,
    primary key (job, name)
) without rowid;

create table blob_garbage (
    -- Blobs that no row refers to: uploads in progress, rejected uploads and contents of deleted records. A task
    -- deletes them from the artifact storage.

    -- Name of the blob in the artifact storage.
    location text primary key not null,
    -- Time at which the blob was registered or its upload last made progress. 1970-01-01: the deletion has started, and
    -- an upload cannot commit the blob any more.
    since integer not null,
    -- Last attempt to delete the blob. 1970-01-01: none.
    tried_at integer not null default 0
);
-- Blobs without a deletion attempt come first.
create index blob_garbage_tried_at on blob_garbage (tried_at, since);

-- Synchronous calls
-- -----------------

create table calls (
    -- Synchronous calls with a waiting caller. The row is deleted when the caller has the response. A row with
    -- `gone_at`, or with `until` in the past, becomes an abandoned execution.

    job blob primary key not null,
    tenant integer not null,
    called_at integer not null,
    -- Time at which the caller stops waiting. A row that still exists afterwards belongs to a failed node.
    until integer not null,
    -- Time at which the caller disconnected. Null: connected.
    gone_at integer
) without rowid;

create table abandoned_executions (
    -- Results of synchronous calls that arrived after the caller disconnected. Kept for 7 days by default.

    job blob primary key not null,
    tenant integer not null,
    queue text not null,
    kind text not null,
    -- Final state of the job.
    state text not null,
    result text,
    error text,
    principal text not null,
    called_at integer not null,
    ended_at integer,
    -- Time at which the caller disconnected or its absence was detected.
    abandoned_at integer not null
) without rowid;
create index abandoned_executions_tenant on abandoned_executions (tenant, job);
create index abandoned_executions_at on abandoned_executions (abandoned_at);
