-- Page sessions by the hash of their secret.
create table sessions (
    hash bytea primary key,
    token uuid not null,
    began_at timestamptz not null,
    expires_at timestamptz not null
);
create index sessions_token on sessions (token);
create index sessions_expires_at on sessions (expires_at);

-- What a tenant may use; nothing is limited without a row or a number.
create table quotas (
    tenant bigint primary key,
    waiting_jobs bigint,
    jobs_per_s double precision,
    payload_bytes_per_s double precision,
    triggers bigint
);
