-- Synchronous calls whose caller waits. The row goes when the caller has its answer; what is left when the caller is gone
-- (`gone_at`, or past `until`, because its node died) becomes an abandoned execution.
create table calls (
    job uuid primary key,
    tenant bigint not null,
    called_at timestamptz not null,
    until timestamptz not null,
    gone_at timestamptz
);

-- Answers that came when nobody was there to hear them.
create table abandoned_executions (
    job uuid primary key,
    tenant bigint not null,
    queue text collate "C" not null,
    kind text collate "C" not null,
    state text collate "C" not null,
    result json,
    error json,
    principal text not null,
    called_at timestamptz not null,
    ended_at timestamptz,
    abandoned_at timestamptz not null
);
create index abandoned_executions_tenant on abandoned_executions (tenant, job);
create index abandoned_executions_at on abandoned_executions (abandoned_at);
