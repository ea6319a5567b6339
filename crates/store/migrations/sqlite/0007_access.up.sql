-- Access: tokens, sessions of the dashboard, quotas and the encryption keys of tenants. Tenants are in 0001_base.

create table access (
    -- Version of tokens, sessions and quotas, in a single row. Changes increment it, and nodes compare it with the
    -- version of their cache. 0: no token was ever created.

    -- Always 1.
    id integer primary key check (id = 1),
    version integer not null
);
insert into access (id, version) values (1, 0);

create table tokens (
    -- API tokens. Expired and revoked tokens are kept for a year as a record.

    id blob primary key not null,
    tenant integer not null,
    -- SHA-256 of the token. The token itself is not stored.
    hash blob not null unique,
    name text not null,
    -- `viewer`, `producer`, `worker`, `operator` or `admin`.
    role text not null,
    -- Array of the rights that were granted in addition to the role.
    rights text not null,
    -- Array of the queues that the token is limited to. Null: all.
    queues text,
    -- Tenants that the workers of the token may serve: array of [id, name]. JSON null: all tenants. SQL null: only its
    -- own tenant.
    serves text,
    -- Token that created this token. Null: none.
    parent blob,
    -- Name of the token that created it. `machine`: a command on the machine of the server. `local`: a request before
    -- the first token existed.
    created_by text not null,
    created_at integer not null,
    expires_at integer,
    revoked_at integer,
    -- Principal that revoked the token.
    revoked_by text,
    -- Last use, accurate to about one minute.
    used_at integer
);
create index tokens_tenant on tokens (tenant, id);
-- A trigger and a delivery look up the rights of their principal by name.
create index tokens_name on tokens (tenant, name);

create table sessions (
    -- Sessions of the dashboard.

    -- SHA-256 of the session secret. The secret itself is not stored.
    hash blob primary key not null,
    -- Token that the session was started with.
    token blob not null,
    -- Creation of the session secret. The secret is replaced regularly.
    began_at integer not null,
    expires_at integer not null
);
create index sessions_token on sessions (token);
create index sessions_expires_at on sessions (expires_at);

create table quotas (
    -- Limits of tenants. A tenant without a row has no limits.

    tenant integer primary key not null,
    -- Maximum number of scheduled and queued jobs. Null: unlimited.
    waiting_jobs integer,
    -- Maximum number of enqueued jobs per second on each node. Null: unlimited.
    jobs_per_s real,
    -- Maximum number of enqueued payload bytes per second on each node. Null: unlimited.
    payload_bytes_per_s real,
    -- Maximum number of triggers. Null: unlimited.
    triggers integer,
    -- Maximum number of time-to-first-signal events recorded per minute on each node. Null: unlimited.
    ttfs_events_per_min integer,
    -- Number of jobs per turn of a worker that serves several tenants. Null: 1.
    weight integer
);

create table secret_keys (
    -- Encryption keys of tenants. A key encrypts the secrets of its tenant: webhook secrets, hook secrets and
    -- environments of runtimes.

    id blob primary key not null,
    tenant integer not null,
    -- The key, encrypted with the master key. The master key is in a file outside the database.
    wrapped text not null
);
create index secret_keys_tenant on secret_keys (tenant, id);
