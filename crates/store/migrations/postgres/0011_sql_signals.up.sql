revoke execute on function ttfs_percentile from public;

create function reporting_tenant() returns bigint
    language sql stable security definer set search_path = windlass, pg_temp as $$
    select coalesce((select r.tenant from database_roles r where r.role = session_user),
        case when not pg_has_role(session_user, (select nspowner from pg_namespace where nspname = 'windlass'), 'MEMBER')
             then -1 end)
$$;
revoke execute on function reporting_tenant from public;
comment on function reporting_tenant is
    'Returns the tenant whose rows the calling PostgreSQL role (`session_user`) sees in the views. Null for the owner of '
    'the schema: all tenants. -1 for a role without a tenant: none.';

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
    job_updated_at timestamptz;
begin
    if upsert_signal.kind is null or upsert_signal.kind not in
        ('queued', 'started', 'phase', 'blocked', 'failed', 'succeeded', 'canceled', 'unavailable') then
        raise exception 'kind must be queued, started, phase, blocked, failed, succeeded, canceled or unavailable'
            using errcode = '22023';
    end if;
    if upsert_signal.phase not in ('resolve', 'fetch', 'restore', 'analyze', 'policy', 'report', 'unknown') and not exists (
        select 1 from (select lane, tenant from jobs where id = upsert_signal.job_id
                       union all select lane, tenant from ended where id = upsert_signal.job_id) j
            join lanes l on l.lane = j.lane join queues q on q.tenant = l.tenant and q.name = l.queue
        where j.tenant = of_tenant and q.settings::jsonb -> 'phases' ? upsert_signal.phase) then
        raise exception 'phase must be built in or declared by the queue of the job' using errcode = '22023';
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
    select j.updated_at into job_updated_at from jobs j where j.id = upsert_signal.job_id for update;
    update jobs j set
            phase = case when exists (
                select 1 from signals s where s.job = j.id and s.kind in ('failed', 'succeeded', 'canceled')
                    and s.epoch = j.epoch and s.updated_at >= j.updated_at and s.kind <> upsert_signal.kind) then j.phase else coalesce(upsert_signal.phase, j.phase) end,
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
            kind = excluded.kind,
            summary = coalesce(excluded.summary, case when s.epoch = excluded.epoch then s.summary end),
            eta_s = excluded.eta_s,
            last_known_outcome = coalesce(excluded.last_known_outcome, s.last_known_outcome),
            next_actions = excluded.next_actions,
            diagnostics = excluded.diagnostics,
            epoch = excluded.epoch, updated_at = excluded.updated_at
        where s.kind is null or s.kind not in ('failed', 'succeeded', 'canceled') or s.kind = upsert_signal.kind
            -- What was reported of an earlier claim or wait is over.
            or s.epoch <> excluded.epoch or s.updated_at < job_updated_at;
    perform pg_notify('windlass_signal', json_build_object('job_id', upsert_signal.job_id, 'tenant_id', of_tenant,
        'kind', upsert_signal.kind, 'phase', upsert_signal.phase)::text);
    return new_version;
end
$$;
comment on function upsert_signal is
    'Refines the signal of a job in the transaction of the caller and returns the new version of the job. The kind, the '
    'phase and the summary belong to the current claim or wait of the job. `next_actions`, `diagnostics` and '
    '`eta_seconds` are replaced, also by null; the other arguments keep the earlier value if they are null. Within a '
    'claim, a final kind (`failed`, `succeeded`, `canceled`) is not replaced by another kind. The kind, phase and summary '
    'of an ended job do not change. Notifies the channel `windlass_signal`.';

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
where ((select reporting_tenant()) is null or h.tenant = (select reporting_tenant()))
    and h.hour_at > now() - interval '7 days';

create or replace view ttfs_daily_summary as
select d.tenant as tenant_id, d.day, d.surface, d.event_count, d.avg_ms, p.p50_ms, p.p95_ms, d.cache_hit_rate,
    d.error_count
from (
    select tenant, surface, date_trunc('day', hour_at, 'UTC') as day, sum(events)::bigint as event_count,
        round(sum(sum_ms)::numeric / nullif(sum(timed), 0), 2) as avg_ms,
        round(sum(events) filter (where cache_hit)::numeric / nullif(sum(events), 0), 4) as cache_hit_rate,
        sum(errors)::bigint as error_count, min(min_ms) as min_ms, max(max_ms) as max_ms
    from ttfs_hours where ((select reporting_tenant()) is null or tenant = (select reporting_tenant()))
        and hour_at > now() - interval '90 days' group by 1, 2, 3) d
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
from ttfs_hours where ((select reporting_tenant()) is null or tenant = (select reporting_tenant()))
    and hour_at > now() - interval '24 hours' group by 1, 2, 3 having sum(rendered) > 0;

create view first_signal_snapshots as
select s.tenant_id, s.job_id, s.run_id, s.created_at, s.updated_at, s.kind, s.phase,
    coalesce(s.reported_summary, s.state_summary) as summary, s.eta_seconds, s.last_known_outcome, s.next_actions,
    s.diagnostics, s.payload_json
from (
    select j.tenant as tenant_id, j.id as job_id, j.run as run_id, j.created_at,
        greatest(j.updated_at, r.updated_at) as updated_at,
        case when j.state in ('failed', 'succeeded', 'canceled') then j.state
            else coalesce(r.kind, case when j.state in ('scheduled', 'queued') then 'queued'
                                       when j.phase is not null then 'phase' else 'started' end) end as kind,
        coalesce(j.phase, 'unknown') as phase, r.summary as reported_summary,
        case j.state when 'scheduled' then 'Due at ' || to_char(j.run_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') || '.'
            when 'queued' then 'Waiting in ' || j.queue || '.'
            when 'failed' then 'Failed: ' || coalesce(j.error ->> 'code', 'unknown') || '.'
            else initcap(j.state) || '.' end as state_summary,
        r.eta_s as eta_seconds, o.last_known_outcome, coalesce(r.next_actions, '[]') as next_actions,
        jsonb_strip_nulls(jsonb_build_object('worker_id', j.worker, 'retry_count', greatest(j.attempt - 1, 0)))
            || coalesce(r.diagnostics::jsonb, '{}') as diagnostics,
        r.payload as payload_json
    from (select * from live_jobs union all select * from ended_jobs) j
    left join signals o on o.job = j.id
    -- A report belongs to the claim or the wait in which it was made.
    left join signals r on r.job = j.id and r.epoch = j.epoch
        and (j.state not in ('scheduled', 'queued') or r.kind is not null and r.updated_at >= j.updated_at)
    where ((select reporting_tenant()) is null or j.tenant = (select reporting_tenant()))
) s;
comment on view first_signal_snapshots is
    'The signal of each job, derived from its row and from what a worker reported. A role with a tenant sees its jobs '
    'only. PostgreSQL only.';
comment on column first_signal_snapshots.kind is
    '`queued`, `started`, `phase`, `blocked`, `failed`, `succeeded`, `canceled` or `unavailable`.';
comment on column first_signal_snapshots.phase is 'Phase that the worker reported, or `unknown`.';
comment on column first_signal_snapshots.summary is 'One sentence for people.';
comment on column first_signal_snapshots.eta_seconds is 'Remaining time that the worker reported.';
comment on column first_signal_snapshots.diagnostics is '`worker_id`, `retry_count`, and the diagnostics of the worker.';
