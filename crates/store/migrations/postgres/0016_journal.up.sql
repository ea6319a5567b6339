-- Durable steps: the journal of a job.

alter table jobs add column has_journal boolean not null default false;
comment on column jobs.has_journal is
    'True if the job has a row in `journals`. A claim reads the journal of such a job.';

-- Each write of the journal updates the row in place.
create table journals (
    job uuid primary key,
    tenant bigint not null,
    entries integer not null,
    resolved integer not null,
    bytes bigint not null,
    drift text collate "C"
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);
comment on table journals is 'One row per job with a journal. It lives as long as its job.';
comment on column journals.entries is 'Number of entries.';
comment on column journals.resolved is 'Number of resolved entries.';
comment on column journals.bytes is 'Sum of `journal_entries.bytes`.';
comment on column journals.drift is
    'Key of the first step that was met with another digest than the recorded one. Null: none.';

create table journal_entries (
    job uuid not null,
    position integer not null,
    tenant bigint not null,
    key text collate "C" not null,
    op text not null,
    seq integer,
    epoch bigint not null,
    hash text collate "C",
    attempt integer not null,
    bytes bigint not null,
    duration_ms bigint,
    created_at timestamptz not null,
    resolved_at timestamptz,
    attempts json,
    result json,
    error json,
    primary key (job, position),
    unique (job, key)
);
comment on table journal_entries is 'Recorded operations of jobs.';
comment on column journal_entries.position is
    'Number of the entry in the journal, from 1, in the order in which the operations were recorded first.';
comment on column journal_entries.key is 'Name of the operation in the journal.';
comment on column journal_entries.op is '`step` or `publish`.';
comment on column journal_entries.seq is 'Place in the order of resolution, from 1. Null: open.';
comment on column journal_entries.epoch is
    'Fencing token of the attempt that recorded the entry first. 0: copied from the journal of another job.';
comment on column journal_entries.hash is 'Digest of operation, name and input, as the worker reported it.';
comment on column journal_entries.attempt is 'Number of attempts of the step.';
comment on column journal_entries.attempts is 'The last failed attempts: array of {attempt, at, code, message}.';
comment on column journal_entries.result is 'Result of the operation, if it is resolved and succeeded.';
comment on column journal_entries.error is 'Error of the operation, if it is resolved and failed.';
comment on column journal_entries.bytes is 'Size of key, attempts, result and error.';
comment on column journal_entries.duration_ms is
    'Duration of the operation in milliseconds, as the worker reported it.';

create function step(
    job uuid,
    epoch bigint,
    key text,
    result json default 'null'
) returns json
language plpgsql
security definer
set search_path = windlass, pg_temp
as $$
#variable_conflict use_column
declare
    of_tenant constant bigint := caller_tenant();
    now_is constant timestamptz := now();
    recorded record;
    head record;
    size bigint;
begin
    if octet_length(step.key) not between 1 and 256 or step.key is null or step.key <> btrim(step.key)
        or step.key ~ '[[:cntrl:]]' or step.key in ('.', '..') then
        raise exception 'key must be 1 to 256 bytes that can be seen' using errcode = '22023';
    end if;
    if step.result is null or octet_length(step.result::text) > 1048576 then
        raise exception 'result must be JSON of at most 1048576 bytes' using errcode = '22023';
    end if;
    -- The lock orders this write with other writes to the journal, and with the end of the claim.
    perform from jobs j
        where j.id = step.job and j.tenant = of_tenant and j.epoch = step.epoch and j.worker is not null
        for no key update;
    if not found then
        raise exception 'claim_lost: job % is not claimed with epoch %', step.job, step.epoch using errcode = '55000';
    end if;
    select e.op, e.seq, e.result, e.error, e.position, e.bytes into recorded
        from journal_entries e where e.job = step.job and e.key = step.key;
    if found and recorded.op <> 'step' then
        raise exception 'workflow_drift: % is recorded as %', step.key, recorded.op using errcode = '55000';
    end if;
    -- The effects of the caller's transaction must not happen a second time.
    if recorded.seq is not null then
        raise exception 'step % of job % is recorded already', step.key, step.job
            using errcode = '23505', detail = coalesce(recorded.result, recorded.error)::text;
    end if;
    select coalesce(max(h.entries), 0) as entries, coalesce(max(h.resolved), 0) as resolved,
           coalesce(max(h.bytes), 0) as bytes into head
        from journals h where h.job = step.job;
    size := octet_length(step.key) + octet_length(step.result::text);
    if recorded.position is not null then
        update journal_entries e
            set seq = head.resolved + 1, attempt = e.attempt + 1, result = step.result, resolved_at = now_is,
                bytes = e.bytes + octet_length(step.result::text)
            where e.job = step.job and e.position = recorded.position;
        size := octet_length(step.result::text);
    else
        if head.entries >= 10000 then
            raise exception 'journal_full: the journal has 10000 entries' using errcode = '54000';
        end if;
        insert into journal_entries (job, position, tenant, key, op, seq, epoch, attempt, result, bytes, created_at,
                                     resolved_at)
            values (step.job, head.entries + 1, of_tenant, step.key, 'step', head.resolved + 1, step.epoch, 1,
                    step.result, size, now_is, now_is);
    end if;
    if head.bytes + size > 67108864 then
        raise exception 'journal_full: the journal would have more than 67108864 bytes' using errcode = '54000';
    end if;
    insert into journals (job, tenant, entries, resolved, bytes)
        values (step.job, of_tenant, 1, 1, size)
        on conflict (job) do update set
            entries = head.entries + case when recorded.position is null then 1 else 0 end,
            resolved = head.resolved + 1, bytes = head.bytes + size;
    update jobs j set has_journal = true where j.id = step.job and not j.has_journal;
    return step.result;
end
$$;
revoke execute on function step from public;
comment on function step is
    'Records a step of a claimed job in the transaction of the caller, and returns the recorded result. The step is '
    'recorded if and only if that transaction commits, so its effects on this database happen exactly once. Fails with '
    '23505 if the step is recorded already (the detail has its result), and with 55000 if the job is not claimed with '
    'this epoch.';
