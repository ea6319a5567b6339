-- Base: tenants, the service heartbeat, the identity of the installation and the records of maintenance tasks.
-- All other groups use these tables.
--
-- Conventions of all tables:
-- - `tenant` is `tenants.id` of the owner of the row.
-- - `job` is `jobs.id` of a live job or `ended.id` of an ended one.
-- - `principal` is the name of the token that created the record.
-- - `depth` counts the triggers that led to the record. Work beyond the maximum depth is a loop and is skipped.
-- - `retry` is a retry policy: {initial_s, maximum_s, exponent, jitter}. `wait_s` is the last delay in seconds, without
--   jitter: the next delay is computed from it.
-- - `error` in JSON is {code, message, retryable}.
-- - A name that ends in `_at`, and `at`, `since` and `until`, is a point in time. `_s` and `_ms` are durations.
--   Times are microseconds since 1970-01-01 UTC.
-- - UUIDs are blobs of 16 bytes, JSON is text, booleans are 0 or 1.
-- - Most tables are `without rowid`: their rows are stored in the order of the primary key.
-- - Identity columns never reuse a value.
-- - No table has a foreign key. History, timelines and dead letters outlive the records that they name.
--
-- SQLite stores the comments inside a statement in its schema: `.schema jobs` shows them.
-- The tables and columns are the same on SQLite and PostgreSQL. The comments have the same text.

-- Tenants
-- -------

create table tenants (
    -- Tenants. Tenant 1, `system`, is built in: its workers may serve other tenants. Tenant 2 is `default`.

    id integer primary key,
    -- Never changes.
    name text not null unique,
    created_at integer not null
);
insert into tenants (id, name, created_at) values
    (1, 'system', cast((julianday('now') - 2440587.5) * 86400000000 as integer)),
    (2, 'default', cast((julianday('now') - 2440587.5) * 86400000000 as integer));

create table database_roles (
    -- PostgreSQL roles that may call the SQL functions, each with its tenant. Written by `windlass tenant
    -- grant-db-role`. Empty on SQLite.

    -- Name of the PostgreSQL role.
    role text primary key not null,
    tenant integer not null,
    granted_at integer not null
);

-- Service
-- -------

create table service (
    -- Heartbeat of the service. The single row is updated by all nodes, about once per second. Time in which no node
    -- serves does not count against leases, timeouts and the age of facts.

    -- Always 1.
    id integer primary key check (id = 1),
    -- Start of the current period of service without an outage.
    since integer not null,
    -- Last heartbeat of any node.
    beat_at integer not null
);
-- The first heartbeat has the time of migration 1 in `schema_migrations`. A later heartbeat shows that a node serves.
insert into service (id, since, beat_at) values
    (1, cast((julianday('now') - 2440587.5) * 86400000000 as integer),
     cast((julianday('now') - 2440587.5) * 86400000000 as integer));

create table installation (
    -- Identity of this installation, in a single row.

    -- Always 1.
    id integer primary key check (id = 1),
    -- Random name. Containers of this installation have it as the label `windlass.instance`; containers with another
    -- label are never changed.
    instance text not null,
    -- Marker of the directory or bucket for large artifacts: it contains an empty object `windlass-artifacts-<marker>`.
    -- Null until the first node checks its storage. A node with storage that lacks this object deletes nothing there.
    -- Used on PostgreSQL only.
    artifacts text
);
insert into installation (id, instance) values (1, lower(hex(randomblob(8))));

-- Maintenance
-- -----------

create table prunings (
    -- Log of retention: one row per batch of deleted records.

    id integer primary key autoincrement,
    at integer not null,
    -- Type of the deleted records, for example `jobs` or `timeline`.
    kind text not null,
    -- Number of deleted records.
    rows_pruned integer not null,
    -- Retention rule that applied.
    why text not null
);
create index prunings_at on prunings (at);

create table quarantine (
    -- Rows that a maintenance task could not process. The task records them here and continues with the other rows.

    -- Name of the task, for example `sweep_leases`.
    task text not null,
    -- Id of the row that failed, for example of a job.
    id blob not null,
    -- Last error.
    error text not null,
    -- Time of the first error.
    since integer not null,
    primary key (task, id)
);
