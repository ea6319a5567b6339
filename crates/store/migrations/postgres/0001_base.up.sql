-- Base: tenants, the service heartbeat, the identity of the installation and the records of maintenance tasks.
-- All other groups use these tables.
--
-- Conventions of all tables:
-- - `tenant` is `tenants.id` of the owner of the row.
--   Row-level security on this column is not part of the migrations: the migration runner creates the policy
--   `own_tenants` afterwards, for every table with a column `tenant` except `tokens` and `database_roles`.
-- - `job` is `jobs.id` of a live job or `ended.id` of an ended one.
-- - `principal` is the name of the token that created the record.
-- - `depth` counts the triggers that led to the record. Work beyond the maximum depth is a loop and is skipped.
-- - `retry` is a retry policy: {initial_s, maximum_s, exponent, jitter}. `wait_s` is the last delay in seconds, without
--   jitter: the next delay is computed from it.
-- - `error` in JSON is {code, message, retryable}.
-- - A name that ends in `_at`, and `at`, `since` and `until`, is a point in time. `_s` and `_ms` are durations.
-- - `collate "C"` makes text sort by bytes, as on SQLite.
-- - JSON has the type `json`: the text is stored unchanged, including texts that `jsonb` rejects.
-- - Identity columns never reuse a value.
-- - No table has a foreign key. History, timelines and dead letters outlive the records that they name.
--
-- `\d+ jobs` in psql shows the comments.
-- The tables and columns are the same on SQLite and PostgreSQL. The comments have the same text.

-- Tenants
-- -------

create table tenants (
    id bigint primary key,
    name text collate "C" not null unique,
    created_at timestamptz not null
);
comment on table tenants is
    'Tenants. Tenant 1, `system`, is built in: its workers may serve other tenants. Tenant 2 is `default`.';
comment on column tenants.name is 'Never changes.';
insert into tenants (id, name, created_at) values (1, 'system', now()), (2, 'default', now());

create table database_roles (
    role text collate "C" primary key,
    tenant bigint not null,
    granted_at timestamptz not null
);
comment on table database_roles is
    'PostgreSQL roles that may call the SQL functions, each with its tenant. Written by `windlass tenant '
    'grant-db-role`. Empty on SQLite.';
comment on column database_roles.role is 'Name of the PostgreSQL role.';

create function caller_tenant() returns bigint
language plpgsql
stable
set search_path = windlass, pg_temp
as $$
declare
    of_role bigint;
begin
    select r.tenant into of_role from database_roles r where r.role = session_user;
    if of_role is null and pg_has_role(session_user, (select nspowner from pg_namespace where nspname = 'windlass'), 'MEMBER') then
        of_role := 2;
    end if;
    if of_role is null then
        raise exception 'the database role % has no tenant', session_user
            using errcode = '42501', hint = format('run: windlass tenant grant-db-role TENANT %s', session_user);
    end if;
    return of_role;
end
$$;
revoke execute on function caller_tenant from public;
comment on function caller_tenant is
    'Returns the tenant of the calling PostgreSQL role (`session_user`) from `database_roles`. A role without an '
    'entry has the default tenant if it is a member of the owner of the schema; any other role gets error 42501. The '
    'SQL functions never take the tenant as an argument.';

-- Service
-- -------

create table service (
    id integer primary key check (id = 1),
    since timestamptz not null,
    beat_at timestamptz not null
);
comment on table service is
    'Heartbeat of the service. The single row is updated by all nodes, about once per second. Time in which no node '
    'serves does not count against leases, timeouts and the age of facts.';
comment on column service.id is 'Always 1.';
comment on column service.since is 'Start of the current period of service without an outage.';
comment on column service.beat_at is 'Last heartbeat of any node.';
-- The first heartbeat has the time of migration 1 in `schema_migrations`. A later heartbeat shows that a node serves.
insert into service (id, since, beat_at) values (1, now(), now());

create table installation (
    id integer primary key check (id = 1),
    instance text collate "C" not null,
    artifacts text
);
comment on table installation is 'Identity of this installation, in a single row.';
comment on column installation.id is 'Always 1.';
comment on column installation.instance is
    'Random name. Containers of this installation have it as the label `windlass.instance`; containers with another '
    'label are never changed.';
comment on column installation.artifacts is
    'Marker of the directory or bucket for large artifacts: it contains an empty object '
    '`windlass-artifacts-<marker>`. Null until the first node checks its storage. A node with storage that lacks this '
    'object deletes nothing there. Used on PostgreSQL only.';
insert into installation (id, instance) values (1, substr(replace(gen_random_uuid()::text, '-', ''), 1, 16));

-- Maintenance
-- -----------

create table prunings (
    id bigint generated by default as identity primary key,
    at timestamptz not null,
    kind text collate "C" not null,
    rows_pruned bigint not null,
    why text not null
);
create index prunings_at on prunings (at);
comment on table prunings is 'Log of retention: one row per batch of deleted records.';
comment on column prunings.kind is 'Type of the deleted records, for example `jobs` or `timeline`.';
comment on column prunings.rows_pruned is 'Number of deleted records.';
comment on column prunings.why is 'Retention rule that applied.';

create table quarantine (
    task text not null,
    id uuid not null,
    error text not null,
    since timestamptz not null,
    primary key (task, id)
);
comment on table quarantine is
    'Rows that a maintenance task could not process. The task records them here and continues with the other rows.';
comment on column quarantine.task is 'Name of the task, for example `sweep_leases`.';
comment on column quarantine.id is 'Id of the row that failed, for example of a job.';
comment on column quarantine.error is 'Last error.';
comment on column quarantine.since is 'Time of the first error.';
