-- Fleet: subjects with their facts, processes, the eligibility of subjects for processes, backoffs and the timeline.

-- Subjects
-- --------

-- Agents update `facts` with every heartbeat. The fill factor leaves room for heap-only updates.
create table subjects (
    tenant bigint not null,
    id text collate "C" not null,
    kind text collate "C",
    facts json not null,
    created_at timestamptz not null,
    updated_at timestamptz not null,
    primary key (tenant, id)
) with (fillfactor = 70);
create index subjects_kind on subjects (tenant, kind, id) where kind is not null;
comment on table subjects is 'Subjects: long-lived entities that jobs work on, for example machines.';
comment on column subjects.facts is 'Facts: {name: {value, at}}. `at` is in microseconds since 1970-01-01 UTC.';

create table subject_credentials (
    hash bytea primary key,
    tenant bigint not null,
    subject text collate "C" not null,
    created_at timestamptz not null,
    created_by text not null
);
create index subject_credentials_subject on subject_credentials (tenant, subject);
comment on table subject_credentials is
    'Credentials of the agents of subjects. A credential can set the facts of its subject and nothing else. A subject '
    'has at most one.';
comment on column subject_credentials.hash is 'SHA-256 of the credential. The credential itself is not stored.';
comment on column subject_credentials.created_by is 'Principal that created the credential.';

-- Processes
-- ---------

create table processes (
    tenant bigint not null,
    name text collate "C" not null,
    queue text collate "C" not null,
    kind text collate "C" not null,
    settings json not null,
    max_active bigint,
    every_s bigint not null,
    excludes json,
    principal text not null,
    swept_to text collate "C",
    dropped_at timestamptz,
    created_at timestamptz not null,
    updated_at timestamptz not null,
    primary key (tenant, name)
);
comment on table processes is
    'Processes: each one selects subjects by their facts and creates a job for each eligible subject.';
comment on column processes.queue is 'Queue of the created jobs.';
comment on column processes.kind is 'Kind of the created jobs.';
comment on column processes.settings is
    'Declaration: `selector`, `payload`, `max_active`, `every_s`, `excludes` and `backoff`.';
comment on column processes.max_active is 'Maximum number of unfinished jobs of the process. Null: unlimited.';
comment on column processes.every_s is 'Minimum interval between two jobs for a subject that stays eligible.';
comment on column processes.excludes is
    'Array of the processes that must not work on a subject at the same time. Null: none.';
comment on column processes.principal is
    'Principal that declared the process. The created jobs have the same principal.';
comment on column processes.swept_to is
    'Last evaluated subject while a changed selector is applied to all subjects in batches. Null: all subjects are '
    'evaluated.';
comment on column processes.dropped_at is
    'Time of the deletion. The scan then deletes the standings in batches and the row at the end. Null: not deleted.';

create table standings (
    tenant bigint not null,
    subject text collate "C" not null,
    process text collate "C" not null,
    since timestamptz,
    pace_at timestamptz,
    ready_at timestamptz,
    check_at timestamptz,
    job uuid,
    made_at timestamptz,
    primary key (tenant, subject, process)
);
-- Eligible subjects of a process without a job, in the order in which jobs are created.
create index standings_ready
    on standings (tenant, process, ready_at, subject) where ready_at is not null and job is null;
-- Subjects to evaluate again.
create index standings_check on standings (check_at, tenant, subject) where check_at is not null;
-- Unfinished jobs of a process, counted against max_active.
create index standings_active on standings (tenant, process, subject) where job is not null;
comment on table standings is
    'Eligibility of subjects for processes. A change of a fact updates it in the same transaction. Without a row the '
    'subject is not eligible and the age of its facts cannot change that.';
comment on column standings.since is 'Start of the eligibility. Null: not eligible.';
comment on column standings.pace_at is
    'Earliest next job by `processes.every_s`, set when a job succeeds or is canceled. Null: no limit.';
comment on column standings.ready_at is
    'Earliest time at which a job may be created: `since` or `pace_at`, delayed by backoffs. 9999-12-31: locked '
    'without end. Null: not eligible.';
comment on column standings.check_at is
    'Time at which the age of a fact can change the eligibility. The scan evaluates the subject again then. Null: age '
    'changes nothing.';
comment on column standings.job is 'Unfinished job of the process for the subject. Null: none.';
comment on column standings.made_at is 'Creation of the last job.';

-- Backoffs
-- --------

create table backoffs (
    tenant bigint not null,
    subject text collate "C" not null,
    process text collate "C" not null,
    until timestamptz,
    cause text not null,
    actor text not null,
    job uuid,
    wait_s bigint,
    waiting boolean not null default false,
    at timestamptz not null,
    primary key (tenant, subject, process)
);
create index backoffs_waiting on backoffs (until) where waiting;
comment on table backoffs is
    'Backoffs and lockouts: a process does not work on the subject until the time has passed. Expired rows are '
    'ignored.';
comment on column backoffs.process is 'Name of the process. `*`: all processes.';
comment on column backoffs.until is 'End of the backoff. Null: it lasts until it is removed.';
comment on column backoffs.cause is 'Code of the error, or the reason that an operator gave.';
comment on column backoffs.actor is 'Author: `worker <id>` or `job <id>` for a failure, a principal for a lockout.';
comment on column backoffs.job is 'Job that failed and wrote the backoff. Null: a lockout.';
comment on column backoffs.wait_s is 'Last delay in seconds, without jitter.';
comment on column backoffs.waiting is 'True if jobs may be parked for this backoff (`jobs.parked`).';
comment on column backoffs.at is 'Time at which the backoff was written.';

-- Timeline
-- --------

-- Retention deletes small batches from the old end of the table. An early vacuum keeps the scan for old rows short.
create table timeline (
    id bigint generated by default as identity primary key,
    tenant bigint not null,
    at timestamptz not null,
    event text not null,
    subject text collate "C",
    runtime text collate "C",
    process text collate "C",
    job uuid,
    attempt integer,
    worker uuid,
    actor text,
    cause text,
    detail json
) with (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_insert_scale_factor = 0.05);
create index timeline_tenant on timeline (tenant, id);
create index timeline_subject on timeline (tenant, subject, id) where subject is not null;
create index timeline_runtime on timeline (tenant, runtime, id) where runtime is not null;
create index timeline_at on timeline (at, id);
comment on table timeline is
    'Timeline of subjects, runtimes and settings. Append-only. Entries outlive what they describe.';
comment on column timeline.event is 'What happened, for example `started`, `facts_changed` or `queue_paused`.';
comment on column timeline.actor is 'Principal that acted.';
comment on column timeline.cause is 'Code of the error, or another reason.';
comment on column timeline.detail is 'Details of the event, for example the changed facts.';
