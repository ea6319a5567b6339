-- Jobs stand under their ids again.
create table jobs_anew (
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
insert into jobs_anew (
    id, tenant, lane, state, run_at, due_at, parked, worker, claim, held, epoch, attempt, max_attempts, started_at,
    begun_at, deadline_at, wait_s, timeout_s, depth, progress, version, created_at, updated_at, principal, payload,
    retry, subject, process, run, unique_key, unique_until, concurrency_key, tags, phase, error, webhook, parent,
    triggered_by)
select
    id, tenant, lane, state, run_at, due_at, parked, worker, claim, held, epoch, attempt, max_attempts, started_at,
    begun_at, deadline_at, wait_s, timeout_s, depth, progress, version, created_at, updated_at, principal, payload,
    retry, subject, process, run, unique_key, unique_until, concurrency_key, tags, phase, error, webhook, parent,
    triggered_by
from jobs order by id;
-- A view of a table that is gone keeps SQLite from naming another so.
drop view live_jobs;
drop table jobs;
alter table jobs_anew rename to jobs;
create view live_jobs as
select j.id, j.tenant, l.queue, l.kind, l.priority, l.affinity, l.guarded, j.state, j.payload, j.run_at, j.attempt,
    j.max_attempts, j.epoch, j.worker, j.started_at, null as finished_at, j.created_at, j.updated_at,
    j.timeout_s, j.retry, j.subject, j.process, j.run, j.unique_key, j.concurrency_key, j.tags, j.phase, j.progress,
    null as result, j.error, j.webhook, j.parent, null as retried_as, j.principal, null as actor,
    j.triggered_by, j.depth, j.version, j.parked, j.lane
from jobs j join lanes l on l.lane = j.lane;
create index jobs_ready on jobs (lane, run_at, id) where due_at is null and parked is null and worker is null;
create index jobs_due on jobs (due_at, id) where due_at is not null;
create index jobs_parked on jobs (tenant, parked, run_at, id) where parked is not null;
create index jobs_held_back on jobs (lane, id) where due_at is not null or parked is not null;
create index jobs_deadline on jobs (deadline_at, id) where deadline_at is not null;
create index jobs_subject on jobs (tenant, subject, id) where subject is not null;
create index jobs_run on jobs (tenant, run, id) where run is not null;
drop index prunings_at;
drop index ttfs_hours_hour;
drop index ttfs_buckets_hour;
drop index failure_hours_hour;
