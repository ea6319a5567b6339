-- What was said of a job holds for the claim (or the wait) it was said in. `kind` is what cannot be derived from the job.
alter table signals add column kind text;
alter table signals add column epoch bigint not null default 0;

-- For anyone's own transaction: says something of a job. What is left out stays; an end that was said is never taken
-- back; a job that has ended keeps its kind, phase and summary. Gives the signal's version.
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
    update jobs j set phase = coalesce(upsert_signal.phase, j.phase), version = j.version + 1, updated_at = said
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
            epoch = excluded.epoch, updated_at = excluded.updated_at;
    perform pg_notify('windlass_signal', json_build_object('job_id', upsert_signal.job_id, 'tenant_id', of_tenant,
        'kind', upsert_signal.kind, 'phase', upsert_signal.phase)::text);
    return new_version;
end
$$;

-- Whoever may call it was granted so.
revoke execute on all functions in schema windlass from public;
