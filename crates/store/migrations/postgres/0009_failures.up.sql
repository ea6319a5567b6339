-- Jobs that failed and are not yet grouped: written with the failure, taken by the task that groups.
create table failure_feed (
    job uuid primary key,
    tenant bigint not null,
    at timestamptz not null
);

-- Failures that are the same but for their details.
create table failure_groups (
    id uuid primary key,
    tenant bigint not null,
    kind text collate "C" not null,
    phase text collate "C" not null,
    error_code text collate "C" not null,
    message_pattern text collate "C" not null,
    example text not null,
    count bigint not null,
    first_seen_at timestamptz not null,
    last_seen_at timestamptz not null,
    last_job uuid not null,
    repairs json,
    signature uuid
);
create index failure_groups_seen on failure_groups (tenant, last_seen_at, id);

create table failure_subjects (
    group_id uuid not null,
    subject text collate "C" not null,
    tenant bigint not null,
    count bigint not null,
    last_seen_at timestamptz not null,
    primary key (group_id, subject)
);

create table failure_hours (
    group_id uuid not null,
    hour_at timestamptz not null,
    count bigint not null,
    primary key (group_id, hour_at)
);

create table failure_jobs (
    group_id uuid not null,
    job uuid not null,
    tenant bigint not null,
    primary key (group_id, job)
);

-- Keys whose last job failed, until one succeeds: how long that takes is the repair time.
create table unrepaired (
    tenant bigint not null,
    kind text collate "C" not null,
    key text collate "C" not null,
    group_id uuid not null,
    job uuid not null,
    failed_at timestamptz not null,
    checked_at timestamptz not null,
    primary key (tenant, kind, key)
);
create index unrepaired_checked on unrepaired (checked_at);

-- `subject_regex` is `subject_pattern` in the words that both engines read alike.
create table signatures (
    id uuid primary key,
    tenant bigint not null,
    hash text collate "C" not null,
    phase text collate "C",
    error_code text collate "C",
    kind text collate "C",
    subject_pattern text,
    subject_regex text,
    likely_cause text,
    mttr_p50_s double precision,
    mttr_p95_s double precision,
    suggested_action text,
    remediation_url text,
    confidence double precision not null,
    version bigint not null,
    samples bigint not null,
    last_match_at timestamptz,
    enabled boolean not null,
    muted boolean not null,
    status text not null,
    fixed_at timestamptz,
    recurred_at timestamptz,
    created_by text not null,
    created_at timestamptz not null,
    updated_at timestamptz not null,
    expires_at timestamptz,
    unique (tenant, hash)
);

-- For anyone's own SQL: the signature that tells most of a failure, best first.
create function match_failure_signature(
    phase text default null,
    error_code text default null,
    image_reference text default null,
    kind text default null
) returns table (
    signature_id uuid,
    likely_cause text,
    mttr_p50_seconds double precision,
    mttr_p95_seconds double precision,
    suggested_action text,
    remediation_url text,
    confidence double precision
)
language plpgsql
stable
security definer
set search_path = windlass, pg_temp
as $$
#variable_conflict use_column
declare
    of_tenant constant bigint := caller_tenant();
begin
    return query
        select s.id, s.likely_cause, s.mttr_p50_s, s.mttr_p95_s, s.suggested_action, s.remediation_url, s.confidence
        from signatures s
        where s.tenant = of_tenant and s.enabled and not s.muted and (s.expires_at is null or s.expires_at > now())
            and (s.phase is null or s.phase = match_failure_signature.phase)
            and (s.error_code is null or s.error_code = match_failure_signature.error_code)
            and (s.kind is null or s.kind = match_failure_signature.kind)
            and (s.subject_regex is null or left(match_failure_signature.image_reference, 512) ~ s.subject_regex)
        order by s.confidence desc, s.samples desc, s.id
        limit 1;
end
$$;

-- Whoever may call it was granted so.
revoke execute on all functions in schema windlass from public;
