-- Time to first signal, as users saw it.
create table ttfs_events (
    id uuid primary key,
    tenant bigint not null,
    at timestamptz not null,
    job uuid,
    surface text not null,
    event_type text not null,
    ttfs_ms bigint,
    cache_hit boolean not null,
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
    metadata json
);
create index ttfs_events_at on ttfs_events (at, id);
create index ttfs_events_tenant on ttfs_events (tenant, surface, at);

-- Kept with each event, also with one that comes late: what is asked for is never counted.
create table ttfs_hours (
    tenant bigint not null,
    surface text collate "C" not null,
    hour_at timestamptz not null,
    cache_hit boolean not null,
    events bigint not null,
    timed bigint not null,
    sum_ms bigint not null,
    min_ms bigint,
    max_ms bigint,
    over_2s bigint not null,
    over_5s bigint not null,
    errors bigint not null,
    rendered bigint not null,
    rendered_over_2s bigint not null,
    rendered_over_5s bigint not null,
    primary key (tenant, surface, hour_at, cache_hit)
);

-- The same hour's times, rounded to three digits, for its percentiles.
create table ttfs_buckets (
    tenant bigint not null,
    surface text collate "C" not null,
    hour_at timestamptz not null,
    cache_hit boolean not null,
    ms bigint not null,
    count bigint not null,
    primary key (tenant, surface, hour_at, cache_hit, ms)
);

-- Alerts that hold now.
create table ttfs_alerts (
    tenant bigint not null,
    surface text collate "C" not null,
    alert text collate "C" not null,
    since timestamptz not null,
    value double precision not null,
    detail text not null,
    primary key (tenant, surface, alert)
);

create view ttfs_hourly_summary as
select h.tenant as tenant_id, h.hour_at as hour, h.surface, h.cache_hit, h.events as event_count,
    round(h.sum_ms::numeric / nullif(h.timed, 0), 2) as avg_ms, p.p50_ms, p.p95_ms, p.p99_ms, h.min_ms, h.max_ms,
    h.over_2s as over_p50_slo, h.over_5s as over_p95_slo
from ttfs_hours h cross join lateral (
    select min(ms) filter (where seen >= 0.50 * total) as p50_ms, min(ms) filter (where seen >= 0.95 * total) as p95_ms,
        min(ms) filter (where seen >= 0.99 * total) as p99_ms
    from (select b.ms, sum(b.count) over (order by b.ms) as seen, sum(b.count) over () as total from ttfs_buckets b
          where b.tenant = h.tenant and b.surface = h.surface and b.hour_at = h.hour_at and b.cache_hit = h.cache_hit) r
) p
where h.hour_at > now() - interval '7 days';

create view ttfs_daily_summary as
select d.tenant as tenant_id, d.day, d.surface, d.event_count, d.avg_ms, p.p50_ms, p.p95_ms, d.cache_hit_rate,
    d.error_count
from (
    select tenant, surface, date_trunc('day', hour_at, 'UTC') as day, sum(events)::bigint as event_count,
        round(sum(sum_ms)::numeric / nullif(sum(timed), 0), 2) as avg_ms,
        round(sum(events) filter (where cache_hit)::numeric / nullif(sum(events), 0), 4) as cache_hit_rate,
        sum(errors)::bigint as error_count
    from ttfs_hours where hour_at > now() - interval '90 days' group by 1, 2, 3) d
cross join lateral (
    select min(ms) filter (where seen >= 0.50 * total) as p50_ms, min(ms) filter (where seen >= 0.95 * total) as p95_ms
    from (select b.ms, sum(sum(b.count)) over (order by b.ms) as seen, sum(sum(b.count)) over () as total
          from ttfs_buckets b where b.tenant = d.tenant and b.surface = d.surface and b.hour_at >= d.day
              and b.hour_at < d.day + interval '1 day' group by b.ms) r
) p;

create view ttfs_slo_breaches as
select tenant as tenant_id, hour_at as hour, surface, sum(rendered)::bigint as total_signals,
    sum(rendered_over_2s)::bigint as p50_breaches, sum(rendered_over_5s)::bigint as p95_breaches,
    round(100.0 * (sum(rendered) - sum(rendered_over_2s)) / nullif(sum(rendered), 0), 2) as p50_compliance_pct,
    round(100.0 * (sum(rendered) - sum(rendered_over_5s)) / nullif(sum(rendered), 0), 2) as p95_compliance_pct
from ttfs_hours where hour_at > now() - interval '24 hours' group by 1, 2, 3 having sum(rendered) > 0;

-- For anyone's own transaction: an event and its place in the rollups. Gives the event's id.
create function record_ttfs_event(
    job_id uuid,
    surface text,
    event_type text,
    ttfs_ms bigint default null,
    cache_hit boolean default false,
    signal_source text default null,
    kind text default null,
    phase text default null,
    run text default null,
    correlation_id text default null,
    error_code text default null,
    metadata json default null
) returns uuid
language plpgsql
security definer
set search_path = windlass, pg_temp
as $$
#variable_conflict use_column
declare
    of_tenant constant bigint := caller_tenant();
    happened constant timestamptz := now();
    of_hour constant timestamptz := date_trunc('hour', happened, 'UTC');
    hit constant boolean := coalesce(record_ttfs_event.cache_hit, false);
    took constant bigint := record_ttfs_event.ttfs_ms;
    is_rendered constant boolean := record_ttfs_event.event_type = 'signal.rendered';
    new_id uuid;
begin
    if record_ttfs_event.surface is null or record_ttfs_event.surface not in ('ui', 'cli', 'ci') then
        raise exception 'surface must be ui, cli or ci' using errcode = '22023';
    end if;
    if record_ttfs_event.event_type is null or record_ttfs_event.event_type not in ('signal.start', 'signal.rendered',
        'signal.timeout', 'signal.error', 'signal.cache_hit', 'signal.cold_start') then
        raise exception 'event_type must be signal.start, .rendered, .timeout, .error, .cache_hit or .cold_start'
            using errcode = '22023';
    end if;
    if took not between 0 and 86400000 then
        raise exception 'ttfs_ms must be from 0 to 86400000' using errcode = '22023';
    end if;
    if exists (select 1 from unnest(array[record_ttfs_event.signal_source, record_ttfs_event.kind, record_ttfs_event.phase,
            record_ttfs_event.run, record_ttfs_event.correlation_id, record_ttfs_event.error_code]) as words(word)
        where octet_length(word) > 1024) or octet_length(record_ttfs_event.metadata::text) > 65536 then
        raise exception 'texts must have at most 1024 bytes, metadata 65536' using errcode = '22023';
    end if;
    new_id := encode(
        set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
            placing substring(int8send(floor(extract(epoch from clock_timestamp()) * 1000)::bigint) from 3) from 1 for 6),
            52, 1), 53, 1), 'hex')::uuid;
    insert into ttfs_events (id, tenant, at, job, surface, event_type, ttfs_ms, cache_hit, signal_source, kind, phase, run,
                             correlation_id, error_code, metadata)
        values (new_id, of_tenant, happened, record_ttfs_event.job_id, record_ttfs_event.surface,
                record_ttfs_event.event_type, took, hit, record_ttfs_event.signal_source, record_ttfs_event.kind,
                record_ttfs_event.phase, record_ttfs_event.run, record_ttfs_event.correlation_id,
                record_ttfs_event.error_code, record_ttfs_event.metadata);
    insert into ttfs_hours as h (tenant, surface, hour_at, cache_hit, events, timed, sum_ms, min_ms, max_ms, over_2s, over_5s,
                                 errors, rendered, rendered_over_2s, rendered_over_5s)
        values (of_tenant, record_ttfs_event.surface, of_hour, hit, 1, (took is not null)::integer, coalesce(took, 0), took,
                took, coalesce((took > 2000)::integer, 0), coalesce((took > 5000)::integer, 0),
                (record_ttfs_event.event_type = 'signal.error')::integer, is_rendered::integer,
                coalesce((is_rendered and took > 2000)::integer, 0), coalesce((is_rendered and took > 5000)::integer, 0))
        on conflict (tenant, surface, hour_at, cache_hit) do update set events = h.events + excluded.events,
            timed = h.timed + excluded.timed, sum_ms = h.sum_ms + excluded.sum_ms,
            min_ms = least(h.min_ms, excluded.min_ms), max_ms = greatest(h.max_ms, excluded.max_ms),
            over_2s = h.over_2s + excluded.over_2s, over_5s = h.over_5s + excluded.over_5s,
            errors = h.errors + excluded.errors, rendered = h.rendered + excluded.rendered,
            rendered_over_2s = h.rendered_over_2s + excluded.rendered_over_2s,
            rendered_over_5s = h.rendered_over_5s + excluded.rendered_over_5s;
    if took is not null then
        insert into ttfs_buckets as b (tenant, surface, hour_at, cache_hit, ms, count)
            values (of_tenant, record_ttfs_event.surface, of_hour, hit,
                    case when took < 1000 then took
                         else round(took / (10 ^ (length(took::text) - 3))::numeric) * (10 ^ (length(took::text) - 3)) end, 1)
            on conflict (tenant, surface, hour_at, cache_hit, ms) do update set count = b.count + 1;
    end if;
    return new_id;
end
$$;

-- Whoever may call it was granted so.
revoke execute on all functions in schema windlass from public;
