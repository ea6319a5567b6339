-- Synchronous calls whose caller waits. The row goes when the caller has its answer; what is left when the caller is gone
-- (`gone_at`, or past `until`, because its node died) becomes an abandoned execution.
create table calls (
    job blob primary key not null,
    tenant integer not null,
    called_at integer not null,
    until integer not null,
    gone_at integer
) without rowid;

-- Answers that came when nobody was there to hear them.
create table abandoned_executions (
    job blob primary key not null,
    tenant integer not null,
    queue text not null,
    kind text not null,
    state text not null,
    result text,
    error text,
    principal text not null,
    called_at integer not null,
    ended_at integer,
    abandoned_at integer not null
) without rowid;
create index abandoned_executions_tenant on abandoned_executions (tenant, job);
create index abandoned_executions_at on abandoned_executions (abandoned_at);
