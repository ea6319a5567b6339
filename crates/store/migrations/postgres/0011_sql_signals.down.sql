drop view first_signal_snapshots;
create or replace view ttfs_hourly_summary as
select h.tenant as tenant_id, h.hour_at as hour, h.surface, h.cache_hit, h.events as event_count,
    round(h.sum_ms::numeric / nullif(h.timed, 0), 2) as avg_ms, p.p50_ms, p.p95_ms, p.p99_ms, h.min_ms, h.max_ms,
    h.over_2s as over_p50_slo, h.over_5s as over_p95_slo
from ttfs_hours h cross join lateral (
    -- Rounded times may lie outside the exact extremes.
    select greatest(h.min_ms, least(h.max_ms, ttfs_percentile(times, counts, 0.50))) as p50_ms,
        greatest(h.min_ms, least(h.max_ms, ttfs_percentile(times, counts, 0.95))) as p95_ms,
        greatest(h.min_ms, least(h.max_ms, ttfs_percentile(times, counts, 0.99))) as p99_ms
    from (select array_agg(b.ms) as times, array_agg(b.count) as counts from ttfs_buckets b
          where b.tenant = h.tenant and b.surface = h.surface and b.hour_at = h.hour_at and b.cache_hit = h.cache_hit) r
) p
where h.hour_at > now() - interval '7 days';
create or replace view ttfs_daily_summary as
select d.tenant as tenant_id, d.day, d.surface, d.event_count, d.avg_ms, p.p50_ms, p.p95_ms, d.cache_hit_rate,
    d.error_count
from (
    select tenant, surface, date_trunc('day', hour_at, 'UTC') as day, sum(events)::bigint as event_count,
        round(sum(sum_ms)::numeric / nullif(sum(timed), 0), 2) as avg_ms,
        round(sum(events) filter (where cache_hit)::numeric / nullif(sum(events), 0), 4) as cache_hit_rate,
        sum(errors)::bigint as error_count, min(min_ms) as min_ms, max(max_ms) as max_ms
    from ttfs_hours where hour_at > now() - interval '90 days' group by 1, 2, 3) d
cross join lateral (
    select greatest(d.min_ms, least(d.max_ms, ttfs_percentile(times, counts, 0.50))) as p50_ms,
        greatest(d.min_ms, least(d.max_ms, ttfs_percentile(times, counts, 0.95))) as p95_ms
    from (select array_agg(b.ms) as times, array_agg(b.count) as counts
          from (select ms, sum(count)::bigint as count from ttfs_buckets b where b.tenant = d.tenant
                    and b.surface = d.surface and b.hour_at >= d.day and b.hour_at < d.day + interval '1 day'
                group by ms) b) r
) p;
create or replace view ttfs_slo_breaches as
select tenant as tenant_id, hour_at as hour, surface, sum(rendered)::bigint as total_signals,
    sum(rendered_over_2s)::bigint as p50_breaches, sum(rendered_over_5s)::bigint as p95_breaches,
    round(100.0 * (sum(rendered) - sum(rendered_over_2s)) / nullif(sum(rendered), 0), 2) as p50_compliance_pct,
    round(100.0 * (sum(rendered) - sum(rendered_over_5s)) / nullif(sum(rendered), 0), 2) as p95_compliance_pct
from ttfs_hours where hour_at > now() - interval '24 hours' group by 1, 2, 3 having sum(rendered) > 0;
drop function reporting_tenant;
create or replace function upsert_signal(
    job_id uuid,
    kind text,
    phase text default null,
    summary text default null,
    eta_seconds double precision default null,
    last_known_outcome json default null,
    next_actions json default null,
    diagnostics json default null
) returns bigint
language plpgsql
security definer
set search_path = windlass, pg_temp
as $$
#variable_conflict use_column
declare
    of_tenant constant bigint := caller_tenant();
    said constant timestamptz := now();
    is_live boolean := true;
    of_epoch bigint;
    new_version bigint;
begin
    if upsert_signal.kind is null or upsert_signal.kind not in
        ('queued', 'started', 'phase', 'blocked', 'failed', 'succeeded', 'canceled', 'unavailable') then
        raise exception 'kind must be queued, started, phase, blocked, failed, succeeded, canceled or unavailable'
            using errcode = '22023';
    end if;
    if upsert_signal.phase !~ '^[A-Za-z0-9._:/@+#-]{1,128}$' then
        raise exception 'phase must be 1 to 128 letters, digits or any of . _ - : / @ + #' using errcode = '22023';
    end if;
    if octet_length(upsert_signal.summary) > 1024 or upsert_signal.summary ~ '[\x01-\x08\x0b-\x1f\x7f]' then
        raise exception 'summary must have at most 1024 bytes and no control characters' using errcode = '22023';
    end if;
    if upsert_signal.eta_seconds not between 0 and 316224000 then
        raise exception 'eta_seconds must be from 0 to 316224000' using errcode = '22023';
    end if;
    if greatest(octet_length(upsert_signal.last_known_outcome::text), octet_length(upsert_signal.next_actions::text),
                octet_length(upsert_signal.diagnostics::text)) > 1048576 then
        raise exception 'last_known_outcome, next_actions and diagnostics must have at most 1048576 bytes each'
            using errcode = '22023';
    end if;
    if json_typeof(upsert_signal.next_actions) <> 'array' or exists (
        select 1 from json_array_elements(case when json_typeof(upsert_signal.next_actions) = 'array'
                                               then upsert_signal.next_actions else '[]' end) as actions(action)
        where json_typeof(action) <> 'object' or json_typeof(action -> 'label') is distinct from 'string'
            or action ->> 'href' is null or action ->> 'href' !~ '^(https?://|/([^/]|$))') then
        raise exception 'next_actions must be an array of {label, href}; href begins with https://, http:// or /'
            using errcode = '22023';
    end if;
    update jobs j set
            phase = case when exists (
                select 1 from signals s where s.job = j.id and s.kind in ('failed', 'succeeded', 'canceled')
                    and s.kind <> upsert_signal.kind) then j.phase else coalesce(upsert_signal.phase, j.phase) end,
            version = j.version + 1, updated_at = said
        where j.id = upsert_signal.job_id and j.tenant = of_tenant
        returning j.epoch, j.version into of_epoch, new_version;
    if not found then
        is_live := false;
        select e.epoch, e.version into of_epoch, new_version from ended e
            where e.id = upsert_signal.job_id and e.tenant = of_tenant;
        if not found then
            raise exception 'there is no job %', upsert_signal.job_id using errcode = 'P0002';
        end if;
    end if;
    insert into signals as s (job, tenant, kind, epoch, summary, eta_s, last_known_outcome, next_actions, diagnostics,
                              updated_at)
        values (upsert_signal.job_id, of_tenant, case when is_live then upsert_signal.kind end, of_epoch,
                case when is_live then upsert_signal.summary end, upsert_signal.eta_seconds,
                upsert_signal.last_known_outcome, upsert_signal.next_actions, upsert_signal.diagnostics, said)
        on conflict (job) do update set
            kind = case when s.kind in ('failed', 'succeeded', 'canceled') then s.kind else excluded.kind end,
            summary = coalesce(excluded.summary, case when s.epoch = excluded.epoch then s.summary end),
            eta_s = excluded.eta_s,
            last_known_outcome = coalesce(excluded.last_known_outcome, s.last_known_outcome),
            next_actions = coalesce(excluded.next_actions, s.next_actions),
            diagnostics = coalesce(excluded.diagnostics, s.diagnostics),
            epoch = excluded.epoch, updated_at = excluded.updated_at
        where s.kind is null or s.kind not in ('failed', 'succeeded', 'canceled') or s.kind = upsert_signal.kind;
    perform pg_notify('windlass_signal', json_build_object('job_id', upsert_signal.job_id, 'tenant_id', of_tenant,
        'kind', upsert_signal.kind, 'phase', upsert_signal.phase)::text);
    return new_version;
end
$$;
comment on function upsert_signal is
    'Refines the signal of a job in the transaction of the caller and returns the new version of the job. An argument '
    'that is null keeps the earlier value, except `eta_seconds`. A final kind (`failed`, `succeeded`, `canceled`) is '
    'never replaced by another kind. The kind, phase and summary of an ended job do not change. Notifies the channel '
    '`windlass_signal`.';
grant execute on function ttfs_percentile to public;
