-- Durable steps: the journal of a job.

-- True if the job has a row in `journals`. A claim reads the journal of such a job.
alter table jobs add column has_journal integer not null default 0;

create table journals (
    -- One row per job with a journal. It lives as long as its job.

    job blob primary key not null,
    tenant integer not null,
    -- Number of entries.
    entries integer not null,
    -- Number of resolved entries.
    resolved integer not null,
    -- Sum of `journal_entries.bytes`.
    bytes integer not null,
    -- Key of the first step that was met with another digest than the recorded one. Null: none.
    drift text
) without rowid;

create table journal_entries (
    -- Recorded operations of jobs.

    job blob not null,
    -- Number of the entry in the journal, from 1, in the order in which the operations were recorded first.
    position integer not null,
    tenant integer not null,
    -- Name of the operation in the journal.
    key text not null,
    -- `step` or `publish`.
    op text not null,
    -- Place in the order of resolution, from 1. Null: open.
    seq integer,
    -- Fencing token of the attempt that recorded the entry first. 0: copied from the journal of another job.
    epoch integer not null,
    -- Digest of operation, name and input, as the worker reported it.
    hash text,
    -- Number of attempts of the step.
    attempt integer not null,
    -- Size of key, attempts, result and error.
    bytes integer not null,
    -- Duration of the operation in milliseconds, as the worker reported it.
    duration_ms integer,
    created_at integer not null,
    resolved_at integer,
    -- The last failed attempts: array of {attempt, at, code, message}.
    attempts text,
    -- Result of the operation, if it is resolved and succeeded.
    result text,
    -- Error of the operation, if it is resolved and failed.
    error text,
    primary key (job, position),
    unique (job, key)
) without rowid;
