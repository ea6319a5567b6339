-- Access: tokens, sessions of the dashboard, quotas and the encryption keys of tenants. Tenants are in 0001_base.

create table access (
    id integer primary key check (id = 1),
    version bigint not null
);
comment on table access is
    'Version of tokens, sessions and quotas, in a single row. Changes increment it, and nodes compare it with the '
    'version of their cache. 0: no token was ever created.';
comment on column access.id is 'Always 1.';
insert into access (id, version) values (1, 0);

create table tokens (
    id uuid primary key,
    tenant bigint not null,
    hash bytea not null unique,
    name text collate "C" not null,
    role text not null,
    rights json not null,
    queues json,
    serves json,
    parent uuid,
    created_by text not null,
    created_at timestamptz not null,
    expires_at timestamptz,
    revoked_at timestamptz,
    revoked_by text,
    used_at timestamptz
);
create index tokens_tenant on tokens (tenant, id);
-- A trigger and a delivery look up the rights of their principal by name.
create index tokens_name on tokens (tenant, name);
comment on table tokens is 'API tokens. Expired and revoked tokens are kept for a year as a record.';
comment on column tokens.hash is 'SHA-256 of the token. The token itself is not stored.';
comment on column tokens.role is '`viewer`, `producer`, `worker`, `operator` or `admin`.';
comment on column tokens.rights is 'Array of the rights that were granted in addition to the role.';
comment on column tokens.queues is 'Array of the queues that the token is limited to. Null: all.';
comment on column tokens.serves is
    'Tenants that the workers of the token may serve: array of [id, name]. JSON null: all tenants. SQL null: only its '
    'own tenant.';
comment on column tokens.parent is 'Token that created this token. Null: none.';
comment on column tokens.created_by is
    'Name of the token that created it. `machine`: a command on the machine of the server. `local`: a request before '
    'the first token existed.';
comment on column tokens.revoked_by is 'Principal that revoked the token.';
comment on column tokens.used_at is 'Last use, accurate to about one minute.';

create table sessions (
    hash bytea primary key,
    token uuid not null,
    began_at timestamptz not null,
    expires_at timestamptz not null
);
create index sessions_token on sessions (token);
create index sessions_expires_at on sessions (expires_at);
comment on table sessions is 'Sessions of the dashboard.';
comment on column sessions.hash is 'SHA-256 of the session secret. The secret itself is not stored.';
comment on column sessions.token is 'Token that the session was started with.';
comment on column sessions.began_at is 'Creation of the session secret. The secret is replaced regularly.';

create table quotas (
    tenant bigint primary key,
    waiting_jobs bigint,
    jobs_per_s double precision,
    payload_bytes_per_s double precision,
    triggers bigint,
    ttfs_events_per_min bigint,
    weight bigint
);
comment on table quotas is 'Limits of tenants. A tenant without a row has no limits.';
comment on column quotas.waiting_jobs is 'Maximum number of scheduled and queued jobs. Null: unlimited.';
comment on column quotas.jobs_per_s is 'Maximum number of enqueued jobs per second on each node. Null: unlimited.';
comment on column quotas.payload_bytes_per_s is
    'Maximum number of enqueued payload bytes per second on each node. Null: unlimited.';
comment on column quotas.triggers is 'Maximum number of triggers. Null: unlimited.';
comment on column quotas.ttfs_events_per_min is
    'Maximum number of time-to-first-signal events recorded per minute on each node. Null: unlimited.';
comment on column quotas.weight is 'Number of jobs per turn of a worker that serves several tenants. Null: 1.';

create table secret_keys (
    id uuid primary key,
    tenant bigint not null,
    wrapped text not null
);
create index secret_keys_tenant on secret_keys (tenant, id);
comment on table secret_keys is
    'Encryption keys of tenants. A key encrypts the secrets of its tenant: webhook secrets, hook secrets and '
    'environments of runtimes.';
comment on column secret_keys.wrapped is
    'The key, encrypted with the master key. The master key is in a file outside the database.';
