-- Signals: refinements of signals, duration statistics for ETAs, failures, failure signatures and time to first signal
-- (TTFS).

-- Signals and ETAs
-- ----------------

create table signals (
    job uuid primary key,
    tenant bigint not null,
    summary text,
    eta_s double precision,
    last_known_outcome json,
    next_actions json,
    diagnostics json,
    payload json,
    updated_at timestamptz not null,
    kind text
        check (kind in ('queued', 'started', 'phase', 'blocked', 'failed', 'succeeded', 'canceled', 'unavailable')),
    epoch bigint not null default 0
);
comment on table signals is
    'Refinements of signals: what a worker or `upsert_signal` reported beyond the row of the job. The signal of a job '
    'without a row is derived from the job alone. An enqueue and a transition write no row.';
comment on column signals.eta_s is 'Reported remaining time.';
comment on column signals.last_known_outcome is
    'Outcome of earlier work. An update without one keeps it, and later attempts inherit it.';
comment on column signals.next_actions is 'Array of {label, href}.';
comment on column signals.diagnostics is 'Diagnostic data of the worker, for example the end of its log.';
comment on column signals.payload is 'Data of the worker.';
comment on column signals.kind is 'Kind that `upsert_signal` set. Null: derived from the state of the job.';
comment on column signals.epoch is
    'Fencing token of the job at the time of the report. A later attempt inherits only `last_known_outcome`.';

create table figures (
    tenant bigint not null,
    kind text collate "C" not null,
    affinity text collate "C" not null,
    run json not null,
    load json not null,
    wait json not null,
    answers double precision not null,
    within_p50 double precision not null,
    within_p90 double precision not null,
    updated_at timestamptz not null,
    primary key (tenant, kind, affinity)
);
comment on table figures is
    'Duration statistics per kind and affinity, the basis of ETAs, and the accuracy of past ETAs.';
comment on column figures.affinity is 'Affinity of the jobs. Empty: none.';
comment on column figures.run is
    'Sketch of the run times: array of [bucket, weight]. Bucket limits grow by 2 %, and old samples lose weight.';
comment on column figures.load is 'Sketch of the times to load the affinity.';
comment on column figures.wait is 'Sketch of the waiting times.';
comment on column figures.answers is 'Number of ETAs that were compared with the real duration. Old ones lose weight.';
comment on column figures.within_p50 is 'Number of these ETAs with a duration of at most the p50.';
comment on column figures.within_p90 is 'Number of these ETAs with a duration of at most the p90.';

-- Failures
-- --------

create table failure_feed (
    job uuid primary key,
    tenant bigint not null,
    at timestamptz not null
);
comment on table failure_feed is
    'Failed jobs that are not in a failure group yet. Written in the transaction of the failure.';
comment on column failure_feed.at is 'Time of the failure.';

create table failure_groups (
    id uuid primary key,
    tenant bigint not null,
    kind text collate "C" not null,
    phase text collate "C" not null,
    error_code text collate "C" not null,
    message_pattern text collate "C" not null,
    example text not null,
    count bigint not null,
    first_seen_at timestamptz not null,
    last_seen_at timestamptz not null,
    last_job uuid not null,
    repairs json,
    signature uuid
);
create index failure_groups_seen on failure_groups (tenant, last_seen_at, id);
comment on table failure_groups is 'Failures with the same kind, phase, error code and normalized message.';
comment on column failure_groups.id is
    'Hash of the tenant and of the four common values: all nodes compute the same id.';
comment on column failure_groups.phase is 'Phase of the failed attempt. Empty: none.';
comment on column failure_groups.message_pattern is
    'Error message with placeholders for numbers, ids, paths, addresses and times.';
comment on column failure_groups.example is 'Message of the last failure.';
comment on column failure_groups.count is 'Number of failures.';
comment on column failure_groups.last_job is 'Job of the last failure.';
comment on column failure_groups.repairs is 'Array of the last 100 repair times in seconds. See `unrepaired`.';
comment on column failure_groups.signature is 'Signature of these failures (`signatures.id`). Null: none.';

create table failure_subjects (
    group_id uuid not null,
    subject text collate "C" not null,
    tenant bigint not null,
    count bigint not null,
    last_seen_at timestamptz not null,
    primary key (group_id, subject)
);
comment on table failure_subjects is 'Number of failures of each group per subject.';
comment on column failure_subjects.subject is
    'Subject of the job, or `image` of the payload of a job without a subject.';

create table failure_hours (
    group_id uuid not null,
    hour_at timestamptz not null,
    count bigint not null,
    primary key (group_id, hour_at)
);
create index failure_hours_hour on failure_hours (hour_at);
comment on table failure_hours is 'Number of failures of each group per hour.';
comment on column failure_hours.hour_at is 'Start of the hour.';

create table failure_jobs (
    group_id uuid not null,
    job uuid not null,
    tenant bigint not null,
    primary key (group_id, job)
);
comment on table failure_jobs is 'Jobs of each failure group. A replay of the group uses them.';

create table unrepaired (
    tenant bigint not null,
    kind text collate "C" not null,
    key text collate "C" not null,
    group_id uuid not null,
    job uuid not null,
    failed_at timestamptz not null,
    checked_at timestamptz not null,
    primary key (tenant, kind, key)
);
create index unrepaired_checked on unrepaired (checked_at);
comment on table unrepaired is
    'Keys with a failed last job. The time from the failure to the next success of the same kind and key is the '
    'repair time.';
comment on column unrepaired.key is '`subject <subject>`, or `key <unique key>` for a job without a subject.';
comment on column unrepaired.job is 'Job that failed.';
comment on column unrepaired.checked_at is 'Last search for a success.';

-- Failure signatures
-- ------------------

create table signatures (
    id uuid primary key,
    tenant bigint not null,
    hash text collate "C" not null,
    phase text collate "C",
    error_code text collate "C",
    kind text collate "C",
    subject_pattern text,
    subject_regex text,
    likely_cause text,
    mttr_p50_s double precision,
    mttr_p95_s double precision,
    suggested_action text,
    remediation_url text,
    confidence double precision not null check (confidence between 0 and 1),
    version bigint not null,
    samples bigint not null,
    last_match_at timestamptz,
    enabled boolean not null,
    muted boolean not null,
    status text not null check (status in ('proposed', 'confirmed', 'manual')),
    fixed_at timestamptz,
    recurred_at timestamptz,
    created_by text not null,
    created_at timestamptz not null,
    updated_at timestamptz not null,
    expires_at timestamptz,
    unique (tenant, hash)
);
comment on table signatures is
    'Failure signatures: a pattern and what is known of such failures. A pattern column that is null matches all '
    'values.';
comment on column signatures.hash is 'SHA-256 of the canonical pattern, in hexadecimal.';
comment on column signatures.phase is 'Pattern: phase of the failed attempt.';
comment on column signatures.error_code is 'Pattern: code of the error.';
comment on column signatures.kind is 'Pattern: kind of the job.';
comment on column signatures.subject_pattern is 'Pattern: regular expression for the subject or image, as entered.';
comment on column signatures.subject_regex is
    '`subject_pattern`, rewritten to syntax that Rust and PostgreSQL read alike.';
comment on column signatures.mttr_p50_s is 'Median repair time in seconds.';
comment on column signatures.mttr_p95_s is '95th percentile of the repair time in seconds.';
comment on column signatures.confidence is 'Confidence from 0 to 1. The best match has the highest value.';
comment on column signatures.version is 'Incremented by each change by a person.';
comment on column signatures.samples is 'Number of matched failures.';
comment on column signatures.enabled is
    'False: the signature is not used. A task disables signatures with a low confidence and no recent match.';
comment on column signatures.muted is 'True: the signature is not used, by decision of a person.';
comment on column signatures.status is
    '`proposed` (learned), `confirmed` (learned and confirmed by a person) or `manual` (written by a person).';
comment on column signatures.fixed_at is 'Time at which a person declared the cause fixed.';
comment on column signatures.recurred_at is 'First match after `fixed_at`.';
comment on column signatures.created_by is
    'Principal that created the signature. `windlass`: learned from a failure group.';

create function match_failure_signature(
    phase text default null,
    error_code text default null,
    image_reference text default null,
    kind text default null
) returns table (
    signature_id uuid,
    likely_cause text,
    mttr_p50_seconds double precision,
    mttr_p95_seconds double precision,
    suggested_action text,
    remediation_url text,
    confidence double precision
)
language plpgsql
stable
security definer
set search_path = windlass, pg_temp
as $$
#variable_conflict use_column
declare
    of_tenant constant bigint := caller_tenant();
begin
    return query
        select s.id, s.likely_cause, s.mttr_p50_s, s.mttr_p95_s, s.suggested_action, s.remediation_url, s.confidence
        from signatures s
        where s.tenant = of_tenant and s.enabled and not s.muted and (s.expires_at is null or s.expires_at > now())
            and (s.phase is null or s.phase = match_failure_signature.phase)
            and (s.error_code is null or s.error_code = match_failure_signature.error_code)
            and (s.kind is null or s.kind = match_failure_signature.kind)
            and (s.subject_regex is null or left(match_failure_signature.image_reference, 512) ~ s.subject_regex)
        order by s.confidence desc, s.samples desc, s.id
        limit 1;
end
$$;
revoke execute on function match_failure_signature from public;
comment on function match_failure_signature is
    'Returns the signature of the tenant of the calling role that matches a failure best: the highest confidence, '
    'then the most samples. Returns no row without a match.';

-- Time to first signal
-- --------------------

-- Retention deletes small batches from the old end of the table. An early vacuum keeps the scan for old rows short.
create table ttfs_events (
    id uuid primary key,
    tenant bigint not null,
    at timestamptz not null,
    job uuid,
    surface text not null check (surface in ('ui', 'cli', 'ci')),
    event_type text not null
        check (event_type in ('signal.start', 'signal.rendered', 'signal.timeout', 'signal.error', 'signal.cache_hit',
        'signal.cold_start')),
    ttfs_ms bigint not null check (ttfs_ms >= 0),
    cache_hit boolean not null,
    signal_source text check (signal_source in ('snapshot', 'cold_start', 'failure_index')),
    kind text
        check (kind in ('queued', 'started', 'phase', 'blocked', 'failed', 'succeeded', 'canceled', 'unavailable')),
    phase text check (phase in ('resolve', 'fetch', 'restore', 'analyze', 'policy', 'report', 'unknown')),
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
) with (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_insert_scale_factor = 0.05);
create index ttfs_events_at on ttfs_events (at, id);
create index ttfs_events_tenant on ttfs_events (tenant, surface, at);
comment on table ttfs_events is 'Time to first signal, as users measured it: one row per event.';
comment on column ttfs_events.at is 'Time of the event by its sender.';
comment on column ttfs_events.surface is '`ui`, `cli` or `ci`.';
comment on column ttfs_events.event_type is
    '`signal.start`, `signal.rendered`, `signal.timeout`, `signal.error`, `signal.cache_hit` or `signal.cold_start`.';
comment on column ttfs_events.ttfs_ms is 'Measured time to first signal.';
comment on column ttfs_events.cache_hit is 'True if the signal came from a cache.';
comment on column ttfs_events.signal_source is '`snapshot`, `cold_start` or `failure_index`.';

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
create index ttfs_hours_hour on ttfs_hours (hour_at);
comment on table ttfs_hours is
    'Rollup of the TTFS events per hour. Updated in the transaction of each event, also of a late one.';
comment on column ttfs_hours.hour_at is 'Start of the hour.';
comment on column ttfs_hours.events is 'Number of events.';
comment on column ttfs_hours.timed is 'Number of events with `ttfs_ms`.';
comment on column ttfs_hours.sum_ms is 'Sum of `ttfs_ms`.';
comment on column ttfs_hours.over_2s is 'Number of events with `ttfs_ms` over 2000, the P50 target.';
comment on column ttfs_hours.over_5s is 'Number of events with `ttfs_ms` over 5000, the P95 target.';
comment on column ttfs_hours.errors is 'Number of `signal.error` events.';
comment on column ttfs_hours.rendered is 'Number of `signal.rendered` events.';
comment on column ttfs_hours.rendered_over_2s is 'Number of `signal.rendered` events over 2 seconds.';
comment on column ttfs_hours.rendered_over_5s is 'Number of `signal.rendered` events over 5 seconds.';

create table ttfs_buckets (
    tenant bigint not null,
    surface text collate "C" not null,
    hour_at timestamptz not null,
    cache_hit boolean not null,
    ms bigint not null,
    count bigint not null,
    primary key (tenant, surface, hour_at, cache_hit, ms)
);
create index ttfs_buckets_hour on ttfs_buckets (hour_at);
comment on table ttfs_buckets is 'Histogram of `ttfs_ms` per hour, for percentiles.';
comment on column ttfs_buckets.ms is '`ttfs_ms`, rounded to three digits.';
comment on column ttfs_buckets.count is 'Number of events.';

create table ttfs_alerts (
    tenant bigint not null,
    surface text collate "C" not null,
    alert text collate "C" not null,
    since timestamptz not null,
    value double precision not null,
    detail text not null,
    primary key (tenant, surface, alert)
);
comment on table ttfs_alerts is 'TTFS alerts that are firing.';
comment on column ttfs_alerts.alert is '`p95_over_target`, `hit_rate_low`, `error_rate_high` or `breaches`.';
comment on column ttfs_alerts.value is 'Measured value, outside the limit of the alert.';

create function ttfs_percentile(times bigint[], counts bigint[], share numeric) returns bigint
    language sql immutable as $$
    select round(below + (above - below) * (rank - floor(rank)))::bigint
    from (select rank, min(ms) filter (where seen > floor(rank)) as below, min(ms) filter (where seen > ceil(rank)) as above
          from (select ms, sum(count) over (order by ms) as seen, share * (sum(count) over () - 1) as rank
                from unnest(times, counts) as buckets(ms, count)) ranked
          group by rank) neighbors
$$;
comment on function ttfs_percentile is
    'Percentile of times that occurred `counts` times, interpolated between neighbors as by `percentile_cont`.';
revoke execute on function ttfs_percentile from public;

create view ttfs_hourly_summary as
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
comment on view ttfs_hourly_summary is 'TTFS per hour, surface and cache hit, of the last 7 days. PostgreSQL only.';
comment on column ttfs_hourly_summary.hour is 'Start of the hour.';
comment on column ttfs_hourly_summary.over_p50_slo is 'Number of events over 2 seconds.';
comment on column ttfs_hourly_summary.over_p95_slo is 'Number of events over 5 seconds.';

create view ttfs_daily_summary as
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
comment on view ttfs_daily_summary is 'TTFS per day (UTC) and surface, of the last 90 days. PostgreSQL only.';
comment on column ttfs_daily_summary.day is 'Start of the day.';
comment on column ttfs_daily_summary.cache_hit_rate is 'Share of cache hits, from 0 to 1.';
comment on column ttfs_daily_summary.error_count is 'Number of `signal.error` events.';

create view ttfs_slo_breaches as
select tenant as tenant_id, hour_at as hour, surface, sum(rendered)::bigint as total_signals,
    sum(rendered_over_2s)::bigint as p50_breaches, sum(rendered_over_5s)::bigint as p95_breaches,
    round(100.0 * (sum(rendered) - sum(rendered_over_2s)) / nullif(sum(rendered), 0), 2) as p50_compliance_pct,
    round(100.0 * (sum(rendered) - sum(rendered_over_5s)) / nullif(sum(rendered), 0), 2) as p95_compliance_pct
from ttfs_hours where hour_at > now() - interval '24 hours' group by 1, 2, 3 having sum(rendered) > 0;
comment on view ttfs_slo_breaches is
    'Rendered signals over the TTFS targets per hour and surface, of the last 24 hours. PostgreSQL only.';
comment on column ttfs_slo_breaches.hour is 'Start of the hour.';
comment on column ttfs_slo_breaches.total_signals is 'Number of `signal.rendered` events.';
comment on column ttfs_slo_breaches.p50_breaches is 'Number of rendered signals over 2 seconds.';
comment on column ttfs_slo_breaches.p95_breaches is 'Number of rendered signals over 5 seconds.';
comment on column ttfs_slo_breaches.p50_compliance_pct is 'Percentage of rendered signals within 2 seconds.';
comment on column ttfs_slo_breaches.p95_compliance_pct is 'Percentage of rendered signals within 5 seconds.';

create function upsert_signal(
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
revoke execute on function upsert_signal from public;
comment on function upsert_signal is
    'Refines the signal of a job in the transaction of the caller and returns the new version of the job. An argument '
    'that is null keeps the earlier value, except `eta_seconds`. A final kind (`failed`, `succeeded`, `canceled`) is '
    'never replaced by another kind. The kind, phase and summary of an ended job do not change. Notifies the channel '
    '`windlass_signal`.';

create function record_ttfs_event(
    job_id uuid,
    surface text,
    event_type text,
    ttfs_ms bigint,
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
    if took is null or took not between 0 and 86400000 then
        raise exception 'ttfs_ms must be from 0 to 86400000' using errcode = '22023';
    end if;
    if record_ttfs_event.signal_source not in ('snapshot', 'cold_start', 'failure_index') then
        raise exception 'signal_source must be snapshot, cold_start or failure_index' using errcode = '22023';
    end if;
    if record_ttfs_event.kind not in ('queued', 'started', 'phase', 'blocked', 'failed', 'succeeded', 'canceled',
        'unavailable') then
        raise exception 'kind must be queued, started, phase, blocked, failed, succeeded, canceled or unavailable'
            using errcode = '22023';
    end if;
    if record_ttfs_event.phase not in ('resolve', 'fetch', 'restore', 'analyze', 'policy', 'report', 'unknown') then
        raise exception 'phase must be resolve, fetch, restore, analyze, policy, report or unknown'
            using errcode = '22023';
    end if;
    if exists (select 1 from unnest(array[record_ttfs_event.run, record_ttfs_event.correlation_id,
            record_ttfs_event.error_code]) as words(word)
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
        values (of_tenant, record_ttfs_event.surface, of_hour, hit, 1, 1, took, took, took,
                (took > 2000)::integer, (took > 5000)::integer,
                (record_ttfs_event.event_type = 'signal.error')::integer, is_rendered::integer,
                (is_rendered and took > 2000)::integer, (is_rendered and took > 5000)::integer)
        on conflict (tenant, surface, hour_at, cache_hit) do update set events = h.events + excluded.events,
            timed = h.timed + excluded.timed, sum_ms = h.sum_ms + excluded.sum_ms,
            min_ms = least(h.min_ms, excluded.min_ms), max_ms = greatest(h.max_ms, excluded.max_ms),
            over_2s = h.over_2s + excluded.over_2s, over_5s = h.over_5s + excluded.over_5s,
            errors = h.errors + excluded.errors, rendered = h.rendered + excluded.rendered,
            rendered_over_2s = h.rendered_over_2s + excluded.rendered_over_2s,
            rendered_over_5s = h.rendered_over_5s + excluded.rendered_over_5s;
    insert into ttfs_buckets as b (tenant, surface, hour_at, cache_hit, ms, count)
        values (of_tenant, record_ttfs_event.surface, of_hour, hit,
                case when took < 1000 then took
                     else round(took / (10 ^ (length(took::text) - 3))::numeric) * (10 ^ (length(took::text) - 3)) end, 1)
        on conflict (tenant, surface, hour_at, cache_hit, ms) do update set count = b.count + 1;
    return new_id;
end
$$;
revoke execute on function record_ttfs_event from public;
comment on function record_ttfs_event is
    'Records a TTFS event in the transaction of the caller, updates the rollups and returns the id of the event.';
