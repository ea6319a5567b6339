-- The error itself, for every attempt that failed: `cause` has only its code.
alter table history add column error json;

-- Work that failed for good, with all it takes to decide and to do it again, also when its job is pruned.
create table dead_letters (
    id uuid primary key,
    tenant bigint not null,
    event_id uuid not null,
    source text collate "C" not null,
    op text collate "C" not null,
    trigger_id uuid,
    script_id uuid,
    job uuid,
    queue text collate "C",
    kind text collate "C",
    error_code text collate "C" not null,
    payload json not null,
    work json,
    depth integer not null,
    attempts json not null,
    attempt_count integer not null,
    first_attempt_at timestamptz not null,
    last_attempt_at timestamptz not null,
    last_error json not null,
    created_at timestamptz not null,
    resolved_at timestamptz,
    resolution text,
    resolved_by text,
    note text,
    replayed_as uuid
);
create index dead_letters_tenant on dead_letters (tenant, id);
create index dead_letters_open on dead_letters (tenant, id) where resolved_at is null;
create index dead_letters_resolved on dead_letters (resolved_at, id) where resolved_at is not null;
create index dead_letters_job on dead_letters (job) where job is not null;
