-- Long-lived things that work is done on. `facts` is {name: {value, at}}, `at` in microseconds.
create table subjects (
    tenant integer not null,
    id text not null,
    kind text,
    facts text not null,
    created_at integer not null,
    updated_at integer not null,
    primary key (tenant, id)
) without rowid;
create index subjects_kind on subjects (tenant, kind, id) where kind is not null;

-- What a subject's own agent may show to set facts of this subject and do nothing else.
create table subject_credentials (
    hash blob primary key not null,
    tenant integer not null,
    subject text not null,
    created_at integer not null,
    created_by text not null
);
create index subject_credentials_subject on subject_credentials (tenant, subject);

-- `swept_to`: how far the subjects were judged since the selector changed; null once all were.
create table processes (
    tenant integer not null,
    name text not null,
    queue text not null,
    kind text not null,
    settings text not null,
    max_active integer,
    every_s integer not null,
    excludes text,
    principal text not null,
    swept_to text,
    dropped_at integer,
    created_at integer not null,
    updated_at integer not null,
    primary key (tenant, name)
) without rowid;

-- How a subject stands with a process: eligible since when, from when a job may be made (a backoff or the pace may
-- put that off), when age alone may change it, and the unfinished job. No row: not eligible, and no age will change it.
create table standings (
    tenant integer not null,
    subject text not null,
    process text not null,
    since integer,
    pace_at integer,
    ready_at integer,
    check_at integer,
    job blob,
    made_at integer,
    primary key (tenant, subject, process)
) without rowid;
create index standings_ready on standings (tenant, process, ready_at, subject) where ready_at is not null and job is null;
create index standings_check on standings (check_at, tenant, subject) where check_at is not null;
create index standings_active on standings (tenant, process, subject) where job is not null;

-- What keeps a process (or every process: `*`) off a subject. `until` null: without end. `waiting`: jobs are parked for it.
create table backoffs (
    tenant integer not null,
    subject text not null,
    process text not null,
    until integer,
    cause text not null,
    actor text not null,
    job blob,
    wait_s integer,
    waiting integer not null default 0,
    at integer not null,
    primary key (tenant, subject, process)
) without rowid;
create index backoffs_waiting on backoffs (until) where waiting;

-- History of subjects, runtimes and settings: append-only, kept after the deletion of what it tells of.
create table timeline (
    id integer primary key autoincrement,
    tenant integer not null,
    at integer not null,
    event text not null,
    subject text,
    runtime text,
    process text,
    job blob,
    attempt integer,
    worker blob,
    actor text,
    cause text,
    detail text
);
create index timeline_tenant on timeline (tenant, id);
create index timeline_subject on timeline (tenant, subject, id) where subject is not null;
create index timeline_runtime on timeline (tenant, runtime, id) where runtime is not null;
create index timeline_at on timeline (at, id);
