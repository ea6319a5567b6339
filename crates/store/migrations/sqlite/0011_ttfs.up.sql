-- Time to first signal, as users saw it.
create table ttfs_events (
    id blob primary key not null,
    tenant integer not null,
    at integer not null,
    job blob,
    surface text not null,
    event_type text not null,
    ttfs_ms integer,
    cache_hit integer not null,
    signal_source text,
    kind text,
    phase text,
    run text,
    network_state text,
    device text,
    release text,
    correlation_id text,
    trace_id text,
    span_id text,
    error_code text,
    error_message text,
    metadata text
) without rowid;
create index ttfs_events_at on ttfs_events (at, id);
create index ttfs_events_tenant on ttfs_events (tenant, surface, at);

-- Kept with each event, also with one that comes late: what is asked for is never counted.
create table ttfs_hours (
    tenant integer not null,
    surface text not null,
    hour_at integer not null,
    cache_hit integer not null,
    events integer not null,
    timed integer not null,
    sum_ms integer not null,
    min_ms integer,
    max_ms integer,
    over_2s integer not null,
    over_5s integer not null,
    errors integer not null,
    rendered integer not null,
    rendered_over_2s integer not null,
    rendered_over_5s integer not null,
    primary key (tenant, surface, hour_at, cache_hit)
) without rowid;

-- The same hour's times, rounded to three digits, for its percentiles.
create table ttfs_buckets (
    tenant integer not null,
    surface text not null,
    hour_at integer not null,
    cache_hit integer not null,
    ms integer not null,
    count integer not null,
    primary key (tenant, surface, hour_at, cache_hit, ms)
) without rowid;

-- Alerts that hold now.
create table ttfs_alerts (
    tenant integer not null,
    surface text not null,
    alert text not null,
    since integer not null,
    value real not null,
    detail text not null,
    primary key (tenant, surface, alert)
) without rowid;
