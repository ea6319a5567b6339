-- Fleet: subjects with their facts, processes, the eligibility of subjects for processes, backoffs and the timeline.

-- Subjects
-- --------

create table subjects (
    -- Subjects: long-lived entities that jobs work on, for example machines.

    tenant integer not null,
    id text not null,
    kind text,
    -- Facts: {name: {value, at}}. `at` is in microseconds since 1970-01-01 UTC.
    facts text not null,
    created_at integer not null,
    updated_at integer not null,
    primary key (tenant, id)
) without rowid;
create index subjects_kind on subjects (tenant, kind, id) where kind is not null;

create table subject_credentials (
    -- Credentials of the agents of subjects. A credential can set the facts of its subject and nothing else. A subject
    -- has at most one.

    -- SHA-256 of the credential. The credential itself is not stored.
    hash blob primary key not null,
    tenant integer not null,
    subject text not null,
    created_at integer not null,
    -- Principal that created the credential.
    created_by text not null
);
create index subject_credentials_subject on subject_credentials (tenant, subject);

-- Processes
-- ---------

create table processes (
    -- Processes: each one selects subjects by their facts and creates a job for each eligible subject.

    tenant integer not null,
    name text not null,
    -- Queue of the created jobs.
    queue text not null,
    -- Kind of the created jobs.
    kind text not null,
    -- Declaration: `selector`, `payload`, `max_active`, `every_s`, `excludes` and `backoff`.
    settings text not null,
    -- Maximum number of unfinished jobs of the process. Null: unlimited.
    max_active integer,
    -- Minimum interval between two jobs for a subject that stays eligible.
    every_s integer not null,
    -- Array of the processes that must not work on a subject at the same time. Null: none.
    excludes text,
    -- Principal that declared the process. The created jobs have the same principal.
    principal text not null,
    -- Last evaluated subject while a changed selector is applied to all subjects in batches. Null: all subjects are
    -- evaluated.
    swept_to text,
    -- Time of the deletion. The scan then deletes the standings in batches and the row at the end. Null: not deleted.
    dropped_at integer,
    created_at integer not null,
    updated_at integer not null,
    primary key (tenant, name)
) without rowid;

create table standings (
    -- Eligibility of subjects for processes. A change of a fact updates it in the same transaction. Without a row the
    -- subject is not eligible and the age of its facts cannot change that.

    tenant integer not null,
    subject text not null,
    process text not null,
    -- Start of the eligibility. Null: not eligible.
    since integer,
    -- Earliest next job by `processes.every_s`, set when a job succeeds or is canceled. Null: no limit.
    pace_at integer,
    -- Earliest time at which a job may be created: `since` or `pace_at`, delayed by backoffs. 9999-12-31: locked
    -- without end. Null: not eligible.
    ready_at integer,
    -- Time at which the age of a fact can change the eligibility. The scan evaluates the subject again then. Null: age
    -- changes nothing.
    check_at integer,
    -- Unfinished job of the process for the subject. Null: none.
    job blob,
    -- Creation of the last job.
    made_at integer,
    primary key (tenant, subject, process)
) without rowid;
-- Eligible subjects of a process without a job, in the order in which jobs are created.
create index standings_ready
    on standings (tenant, process, ready_at, subject) where ready_at is not null and job is null;
-- Subjects to evaluate again.
create index standings_check on standings (check_at, tenant, subject) where check_at is not null;
-- Unfinished jobs of a process, counted against max_active.
create index standings_active on standings (tenant, process, subject) where job is not null;

-- Backoffs
-- --------

create table backoffs (
    -- Backoffs and lockouts: a process does not work on the subject until the time has passed. Expired rows are
    -- ignored.

    tenant integer not null,
    subject text not null,
    -- Name of the process. `*`: all processes.
    process text not null,
    -- End of the backoff. Null: it lasts until it is removed.
    until integer,
    -- Code of the error, or the reason that an operator gave.
    cause text not null,
    -- Author: `worker <id>` or `job <id>` for a failure, a principal for a lockout.
    actor text not null,
    -- Job that failed and wrote the backoff. Null: a lockout.
    job blob,
    -- Last delay in seconds, without jitter.
    wait_s integer,
    -- True if jobs may be parked for this backoff (`jobs.parked`).
    waiting integer not null default 0,
    -- Time at which the backoff was written.
    at integer not null,
    primary key (tenant, subject, process)
) without rowid;
create index backoffs_waiting on backoffs (until) where waiting;

-- Timeline
-- --------

create table timeline (
    -- Timeline of subjects, runtimes and settings. Append-only. Entries outlive what they describe.

    id integer primary key autoincrement,
    tenant integer not null,
    at integer not null,
    -- What happened, for example `started`, `facts_changed` or `queue_paused`.
    event text not null,
    subject text,
    runtime text,
    process text,
    job blob,
    attempt integer,
    worker blob,
    -- Principal that acted.
    actor text,
    -- Code of the error, or another reason.
    cause text,
    -- Details of the event, for example the changed facts.
    detail text
);
create index timeline_tenant on timeline (tenant, id);
create index timeline_subject on timeline (tenant, subject, id) where subject is not null;
create index timeline_runtime on timeline (tenant, runtime, id) where runtime is not null;
create index timeline_at on timeline (at, id);
