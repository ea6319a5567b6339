-- Jobs that failed and are not yet grouped: written with the failure, taken by the task that groups.
create table failure_feed (
    job blob primary key not null,
    tenant integer not null,
    at integer not null
) without rowid;

-- Failures that are the same but for their details.
create table failure_groups (
    id blob primary key not null,
    tenant integer not null,
    kind text not null,
    phase text not null,
    error_code text not null,
    message_pattern text not null,
    example text not null,
    count integer not null,
    first_seen_at integer not null,
    last_seen_at integer not null,
    last_job blob not null,
    repairs text,
    signature blob
) without rowid;
create index failure_groups_seen on failure_groups (tenant, last_seen_at, id);

create table failure_subjects (
    group_id blob not null,
    subject text not null,
    tenant integer not null,
    count integer not null,
    last_seen_at integer not null,
    primary key (group_id, subject)
) without rowid;

create table failure_hours (
    group_id blob not null,
    hour_at integer not null,
    count integer not null,
    primary key (group_id, hour_at)
) without rowid;

create table failure_jobs (
    group_id blob not null,
    job blob not null,
    tenant integer not null,
    primary key (group_id, job)
) without rowid;

-- Keys whose last job failed, until one succeeds: how long that takes is the repair time.
create table unrepaired (
    tenant integer not null,
    kind text not null,
    key text not null,
    group_id blob not null,
    job blob not null,
    failed_at integer not null,
    checked_at integer not null,
    primary key (tenant, kind, key)
) without rowid;
create index unrepaired_checked on unrepaired (checked_at);

-- `subject_regex` is `subject_pattern` in the words that both engines read alike.
create table signatures (
    id blob primary key not null,
    tenant integer not null,
    hash text not null,
    phase text,
    error_code text,
    kind text,
    subject_pattern text,
    subject_regex text,
    likely_cause text,
    mttr_p50_s real,
    mttr_p95_s real,
    suggested_action text,
    remediation_url text,
    confidence real not null,
    version integer not null,
    samples integer not null,
    last_match_at integer,
    enabled integer not null,
    muted integer not null,
    status text not null,
    fixed_at integer,
    recurred_at integer,
    created_by text not null,
    created_at integer not null,
    updated_at integer not null,
    expires_at integer,
    unique (tenant, hash)
) without rowid;
