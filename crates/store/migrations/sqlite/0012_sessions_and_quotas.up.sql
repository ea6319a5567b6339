-- Page sessions by the hash of their secret.
create table sessions (
    hash blob primary key not null,
    token blob not null,
    began_at integer not null,
    expires_at integer not null
);
create index sessions_token on sessions (token);
create index sessions_expires_at on sessions (expires_at);

-- What a tenant may use; nothing is limited without a row or a number.
create table quotas (
    tenant integer primary key not null,
    waiting_jobs integer,
    jobs_per_s real,
    payload_bytes_per_s real,
    triggers integer
);
