-- The error itself, for every attempt that failed: `cause` has only its code.
alter table history add column error text;

-- Work that failed for good, with all it takes to decide and to do it again, also when its job is pruned.
create table dead_letters (
    id blob primary key not null,
    tenant integer not null,
    event_id blob not null,
    source text not null,
    op text not null,
    trigger_id blob,
    script_id blob,
    job blob,
    queue text,
    kind text,
    error_code text not null,
    payload text not null,
    work text,
    depth integer not null,
    attempts text not null,
    attempt_count integer not null,
    first_attempt_at integer not null,
    last_attempt_at integer not null,
    last_error text not null,
    created_at integer not null,
    resolved_at integer,
    resolution text,
    resolved_by text,
    note text,
    replayed_as blob
) without rowid;
create index dead_letters_tenant on dead_letters (tenant, id);
create index dead_letters_open on dead_letters (tenant, id) where resolved_at is null;
create index dead_letters_resolved on dead_letters (resolved_at, id) where resolved_at is not null;
create index dead_letters_job on dead_letters (job) where job is not null;
