-- Signals: refinements of signals, duration statistics for ETAs, failures, failure signatures and time to first signal
-- (TTFS).

-- Signals and ETAs
-- ----------------

create table signals (
    -- Refinements of signals: what a worker or `upsert_signal` reported beyond the row of the job. The signal of a job
    -- without a row is derived from the job alone. An enqueue and a transition write no row.

    job blob primary key not null,
    tenant integer not null,
    summary text,
    -- Reported remaining time.
    eta_s real,
    -- Outcome of earlier work. An update without one keeps it, and later attempts inherit it.
    last_known_outcome text,
    -- Array of {label, href}.
    next_actions text,
    -- Diagnostic data of the worker, for example the end of its log.
    diagnostics text,
    -- Data of the worker.
    payload text,
    updated_at integer not null,
    -- Kind that `upsert_signal` set. Null: derived from the state of the job.
    kind text
        check (kind in ('queued', 'started', 'phase', 'blocked', 'failed', 'succeeded', 'canceled', 'unavailable')),
    -- Fencing token of the job at the time of the report. A later attempt inherits only `last_known_outcome`.
    epoch integer not null default 0
) without rowid;

create table figures (
    -- Duration statistics per kind and affinity, the basis of ETAs, and the accuracy of past ETAs.

    tenant integer not null,
    kind text not null,
    -- Affinity of the jobs. Empty: none.
    affinity text not null,
    -- Sketch of the run times: array of [bucket, weight]. Bucket limits grow by 2 %, and old samples lose weight.
    run text not null,
    -- Sketch of the times to load the affinity.
    load text not null,
    -- Sketch of the waiting times.
    wait text not null,
    -- Number of ETAs that were compared with the real duration. Old ones lose weight.
    answers real not null,
    -- Number of these ETAs with a duration of at most the p50.
    within_p50 real not null,
    -- Number of these ETAs with a duration of at most the p90.
    within_p90 real not null,
    updated_at integer not null,
    primary key (tenant, kind, affinity)
) without rowid;

-- Failures
-- --------

create table failure_feed (
    -- Failed jobs that are not in a failure group yet. Written in the transaction of the failure.

    job blob primary key not null,
    tenant integer not null,
    -- Time of the failure.
    at integer not null
) without rowid;

create table failure_groups (
    -- Failures with the same kind, phase, error code and normalized message.

    -- Hash of the tenant and of the four common values: all nodes compute the same id.
    id blob primary key not null,
    tenant integer not null,
    kind text not null,
    -- Phase of the failed attempt. Empty: none.
    phase text not null,
    error_code text not null,
    -- Error message with placeholders for numbers, ids, paths, addresses and times.
    message_pattern text not null,
    -- Message of the last failure.
    example text not null,
    -- Number of failures.
    count integer not null,
    first_seen_at integer not null,
    last_seen_at integer not null,
    -- Job of the last failure.
    last_job blob not null,
    -- Array of the last 100 repair times in seconds. See `unrepaired`.
    repairs text,
    -- Signature of these failures (`signatures.id`). Null: none.
    signature blob
) without rowid;
create index failure_groups_seen on failure_groups (tenant, last_seen_at, id);

create table failure_subjects (
    -- Number of failures of each group per subject.

    group_id blob not null,
    -- Subject of the job, or `image` of the payload of a job without a subject.
    subject text not null,
    tenant integer not null,
    count integer not null,
    last_seen_at integer not null,
    primary key (group_id, subject)
) without rowid;

create table failure_hours (
    -- Number of failures of each group per hour.

    group_id blob not null,
    -- Start of the hour.
    hour_at integer not null,
    count integer not null,
    primary key (group_id, hour_at)
) without rowid;
create index failure_hours_hour on failure_hours (hour_at);

create table failure_jobs (
    -- Jobs of each failure group. A replay of the group uses them.

    group_id blob not null,
    job blob not null,
    tenant integer not null,
    primary key (group_id, job)
) without rowid;

create table unrepaired (
    -- Keys with a failed last job. The time from the failure to the next success of the same kind and key is the repair
    -- time.

    tenant integer not null,
    kind text not null,
    -- `subject <subject>`, or `key <unique key>` for a job without a subject.
    key text not null,
    group_id blob not null,
    -- Job that failed.
    job blob not null,
    failed_at integer not null,
    -- Last search for a success.
    checked_at integer not null,
    primary key (tenant, kind, key)
) without rowid;
create index unrepaired_checked on unrepaired (checked_at);

-- Failure signatures
-- ------------------

create table signatures (
    -- Failure signatures: a pattern and what is known of such failures. A pattern column that is null matches all
    -- values.

    id blob primary key not null,
    tenant integer not null,
    -- SHA-256 of the canonical pattern, in hexadecimal.
    hash text not null,
    -- Pattern: phase of the failed attempt.
    phase text,
    -- Pattern: code of the error.
    error_code text,
    -- Pattern: kind of the job.
    kind text,
    -- Pattern: regular expression for the subject or image, as entered.
    subject_pattern text,
    -- `subject_pattern`, rewritten to syntax that Rust and PostgreSQL read alike.
    subject_regex text,
    likely_cause text,
    -- Median repair time in seconds.
    mttr_p50_s real,
    -- 95th percentile of the repair time in seconds.
    mttr_p95_s real,
    suggested_action text,
    remediation_url text,
    -- Confidence from 0 to 1. The best match has the highest value.
    confidence real not null check (confidence between 0 and 1),
    -- Incremented by each change by a person.
    version integer not null,
    -- Number of matched failures.
    samples integer not null,
    last_match_at integer,
    -- False: the signature is not used. A task disables signatures with a low confidence and no recent match.
    enabled integer not null,
    -- True: the signature is not used, by decision of a person.
    muted integer not null,
    -- `proposed` (learned), `confirmed` (learned and confirmed by a person) or `manual` (written by a person).
    status text not null check (status in ('proposed', 'confirmed', 'manual')),
    -- Time at which a person declared the cause fixed.
    fixed_at integer,
    -- First match after `fixed_at`.
    recurred_at integer,
    -- Principal that created the signature. `windlass`: learned from a failure group.
    created_by text not null,
    created_at integer not null,
    updated_at integer not null,
    expires_at integer,
    unique (tenant, hash)
) without rowid;

-- Time to first signal
-- --------------------

create table ttfs_events (
    -- Time to first signal, as users measured it: one row per event.

    id blob primary key not null,
    tenant integer not null,
    -- Time of the event by its sender.
    at integer not null,
    job blob,
    -- `ui`, `cli` or `ci`.
    surface text not null check (surface in ('ui', 'cli', 'ci')),
    -- `signal.start`, `signal.rendered`, `signal.timeout`, `signal.error`, `signal.cache_hit` or `signal.cold_start`.
    event_type text not null
        check (event_type in ('signal.start', 'signal.rendered', 'signal.timeout', 'signal.error', 'signal.cache_hit',
        'signal.cold_start')),
    -- Measured time to first signal.
    ttfs_ms integer not null check (ttfs_ms >= 0),
    -- True if the signal came from a cache.
    cache_hit integer not null,
    -- `snapshot`, `cold_start` or `failure_index`.
    signal_source text check (signal_source in ('snapshot', 'cold_start', 'failure_index')),
    kind text
        check (kind in ('queued', 'started', 'phase', 'blocked', 'failed', 'succeeded', 'canceled', 'unavailable')),
    phase text check (phase in ('resolve', 'fetch', 'restore', 'analyze', 'policy', 'report', 'unknown')),
    run text,
    network_state text,
    device text,
    release text,
    correlation_id text,
    trace_id text,
    span_id text,
    error_code text,
    error_message text,
    metadata text
) without rowid;
create index ttfs_events_at on ttfs_events (at, id);
create index ttfs_events_tenant on ttfs_events (tenant, surface, at);

create table ttfs_hours (
    -- Rollup of the TTFS events per hour. Updated in the transaction of each event, also of a late one.

    tenant integer not null,
    surface text not null,
    -- Start of the hour.
    hour_at integer not null,
    cache_hit integer not null,
    -- Number of events.
    events integer not null,
    -- Number of events with `ttfs_ms`.
    timed integer not null,
    -- Sum of `ttfs_ms`.
    sum_ms integer not null,
    min_ms integer,
    max_ms integer,
    -- Number of events with `ttfs_ms` over 2000, the P50 target.
    over_2s integer not null,
    -- Number of events with `ttfs_ms` over 5000, the P95 target.
    over_5s integer not null,
    -- Number of `signal.error` events.
    errors integer not null,
    -- Number of `signal.rendered` events.
    rendered integer not null,
    -- Number of `signal.rendered` events over 2 seconds.
    rendered_over_2s integer not null,
    -- Number of `signal.rendered` events over 5 seconds.
    rendered_over_5s integer not null,
    primary key (tenant, surface, hour_at, cache_hit)
) without rowid;
create index ttfs_hours_hour on ttfs_hours (hour_at);

create table ttfs_buckets (
    -- Histogram of `ttfs_ms` per hour, for percentiles.

    tenant integer not null,
    surface text not null,
    hour_at integer not null,
    cache_hit integer not null,
    -- `ttfs_ms`, rounded to three digits.
    ms integer not null,
    -- Number of events.
    count integer not null,
    primary key (tenant, surface, hour_at, cache_hit, ms)
) without rowid;
create index ttfs_buckets_hour on ttfs_buckets (hour_at);

create table ttfs_alerts (
    -- TTFS alerts that are firing.

    tenant integer not null,
    surface text not null,
    -- `p95_over_target`, `hit_rate_low`, `error_rate_high` or `breaches`.
    alert text not null,
    since integer not null,
    -- Measured value, outside the limit of the alert.
    value real not null,
    detail text not null,
    primary key (tenant, surface, alert)
) without rowid;
