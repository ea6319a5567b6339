-- `windlass.enqueue` checks `run_at` and the nesting of the payload like the HTTP API.

create function nests_deeper_than(document text, levels integer) returns boolean
language plpgsql
immutable
set search_path = windlass, pg_temp
as $$
declare
    brackets text;
begin
    if length(document) - length(translate(document, '[{', '')) <= levels then
        return false;
    end if;
    -- Only the brackets outside of strings. Each pass removes the innermost pairs.
    brackets := regexp_replace(regexp_replace(document, '"(?:[^"\\]|\\.)*"', '', 'g'), '[^][{}]+', '', 'g');
    brackets := translate(brackets, '{}', '[]');
    for level in 1..levels loop
        exit when brackets = '';
        brackets := replace(brackets, '[]', '');
    end loop;
    return brackets <> '';
end
$$;
comment on function nests_deeper_than is 'True if a JSON document has more nested arrays and objects than `levels`.';
revoke execute on function nests_deeper_than from public;

create or replace function enqueue(
    queue text,
    kind text,
    payload json default 'null',
    affinity text default null,
    priority integer default 0,
    run_at timestamptz default null,
    subject text default null,
    process text default null,
    run text default null,
    unique_key text default null,
    unique_for_s bigint default null,
    concurrency_key text default null,
    max_attempts integer default 3,
    timeout_s bigint default null,
    tags text[] default null
) returns uuid
language plpgsql
security definer
set search_path = windlass, pg_temp
as $$
#variable_conflict use_column
declare
    of_tenant constant bigint := caller_tenant();
    made constant timestamptz := now();
    due constant timestamptz := coalesce(enqueue.run_at, made);
    is_due constant boolean := due <= made;
    is_guarded constant boolean := enqueue.subject is not null or enqueue.concurrency_key is not null;
    to_lane bigint;
    new_id uuid;
    taken uuid;
begin
    if enqueue.queue is null or enqueue.queue !~ '^[A-Za-z0-9._:/@+#-]{1,128}$' then
        raise exception 'queue must be 1 to 128 letters, digits or any of . _ - : / @ + #' using errcode = '22023';
    end if;
    if enqueue.kind is null or enqueue.kind !~ '^[A-Za-z0-9._:/@+#-]{1,128}$' then
        raise exception 'kind must be 1 to 128 letters, digits or any of . _ - : / @ + #' using errcode = '22023';
    end if;
    if enqueue.process !~ '^[A-Za-z0-9._:/@+#-]{1,128}$' then
        raise exception 'process must be 1 to 128 letters, digits or any of . _ - : / @ + #' using errcode = '22023';
    end if;
    if enqueue.queue like 'windlass.%' then
        raise exception 'queue must not begin with windlass.: those queues are the program''s own'
            using errcode = '22023';
    end if;
    if exists (
        select 1 from unnest(array[enqueue.queue, enqueue.kind, enqueue.process, enqueue.affinity, enqueue.subject,
                                   enqueue.run, enqueue.unique_key, enqueue.concurrency_key] || enqueue.tags)
            as words(word)
        where word in ('.', '..')) then
        raise exception 'nothing may be called . or ..: no address could name it' using errcode = '22023';
    end if;
    if enqueue.unique_for_s is not null and enqueue.unique_key is null then
        raise exception 'unique_for_s needs a unique_key' using errcode = '22023';
    end if;
    if enqueue.subject like 'runtime/%' then
        raise exception 'subject must not begin with runtime/: operations on runtimes hold those subjects'
            using errcode = '22023';
    end if;
    if enqueue.process is not null and enqueue.subject is null then
        raise exception 'process needs a subject: say what the process is done to, or leave it out'
            using errcode = '22023';
    end if;
    if enqueue.max_attempts is null or enqueue.max_attempts not between 1 and 1000 then
        raise exception 'max_attempts must be from 1 to 1000' using errcode = '22023';
    end if;
    if enqueue.priority is null or enqueue.priority not between -32768 and 32767 then
        raise exception 'priority must be from -32768 to 32767' using errcode = '22023';
    end if;
    if enqueue.timeout_s not between 1 and 2592000 then
        raise exception 'timeout_s must be from 1 to 2592000' using errcode = '22023';
    end if;
    if enqueue.unique_for_s not between 1 and 316224000 then
        raise exception 'unique_for_s must be from 1 to 316224000' using errcode = '22023';
    end if;
    if not isfinite(enqueue.run_at) or enqueue.run_at < 'epoch' or enqueue.run_at > made + interval '316224000 seconds' then
        raise exception 'run_at must be from 1970 to ten years from now' using errcode = '22023';
    end if;
    if octet_length(enqueue.payload::text) > 1048576 then
        raise exception 'payload must be at most 1048576 bytes' using errcode = '22023';
    end if;
    if nests_deeper_than(enqueue.payload::text, 100) then
        raise exception 'payload must not nest deeper than 100 levels' using errcode = '22023';
    end if;
    if exists (
        select 1 from unnest(array[enqueue.affinity, enqueue.subject, enqueue.run, enqueue.unique_key,
                                   enqueue.concurrency_key]) as words(word)
        where octet_length(word) not between 1 and 256 or word <> btrim(word) or word ~ '[[:cntrl:]]') then
        raise exception 'affinity, subject, run and keys must be 1 to 256 bytes that can be seen'
            using errcode = '22023';
    end if;
    if cardinality(enqueue.tags) > 32 or exists (
        select 1 from unnest(enqueue.tags) as words(word)
        where word is null or octet_length(word) not between 1 and 256 or word <> btrim(word)
            or word ~ '[[:cntrl:]]') then
        raise exception 'tags must be at most 32, each 1 to 256 bytes that can be seen' using errcode = '22023';
    end if;
    -- A UUIDv7: 48 bits of milliseconds, then random bits of a version 4 with the version set to 7.
    new_id := encode(
        set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
            placing substring(int8send(floor(extract(epoch from clock_timestamp()) * 1000)::bigint) from 3) from 1 for 6),
            52, 1), 53, 1), 'hex')::uuid;
    if enqueue.unique_key is not null then
        delete from unique_keys u
            where u.tenant = of_tenant and u.queue = enqueue.queue and u.key = enqueue.unique_key and u.until <= made;
        insert into unique_keys (tenant, queue, key, job, until)
            values (of_tenant, enqueue.queue, enqueue.unique_key, new_id, made + enqueue.unique_for_s * interval '1 second')
            on conflict do nothing;
        select u.job into taken from unique_keys u
            where u.tenant = of_tenant and u.queue = enqueue.queue and u.key = enqueue.unique_key;
        if taken <> new_id then
            return taken;
        end if;
    end if;
    select l.lane into to_lane from lanes l
        where l.tenant = of_tenant and l.queue = enqueue.queue and l.kind = enqueue.kind and l.priority = enqueue.priority
          and l.affinity = coalesce(enqueue.affinity, '') and l.guarded = is_guarded;
    if to_lane is null then
        insert into lanes (tenant, queue, kind, priority, affinity, guarded)
            values (of_tenant, enqueue.queue, enqueue.kind, enqueue.priority, coalesce(enqueue.affinity, ''), is_guarded)
            on conflict (tenant, queue, kind, priority, affinity, guarded) do update set queue = excluded.queue
            returning lane into to_lane;
    end if;
    insert into jobs (id, tenant, lane, state, run_at, due_at, max_attempts, created_at, updated_at, principal, payload,
                      subject, process, run, unique_key, unique_until, concurrency_key, timeout_s, tags, triggered_by)
        values (new_id, of_tenant, to_lane, case when is_due then 'queued' else 'scheduled' end, due,
                case when is_due then null else due end, enqueue.max_attempts, made, made, session_user,
                coalesce(enqueue.payload, 'null'), enqueue.subject, enqueue.process, enqueue.run, enqueue.unique_key,
                case when enqueue.unique_key is not null then made + enqueue.unique_for_s * interval '1 second' end,
                enqueue.concurrency_key, enqueue.timeout_s, to_json(enqueue.tags), 'sql');
    insert into job_tags (tenant, tag, job)
        select distinct of_tenant, t, new_id from unnest(enqueue.tags) t on conflict do nothing;
    if enqueue.run is not null then
        insert into runs (tenant, run, state, on_failure, is_open, live, succeeded, failed, canceled, skipped, principal,
                          depth, version, created_at)
            values (of_tenant, enqueue.run, 'running', 'continue', true, 1, 0, 0, 0, 0, session_user, 0, 1, made)
            on conflict (tenant, run) do update set live = runs.live + 1, version = runs.version + 1,
                state = case when runs.is_open then 'running' else runs.state end,
                finished_at = case when runs.is_open then null else runs.finished_at end;
    end if;
    insert into counter_deltas (tenant, queue, scheduled, queued, running, succeeded, failed, canceled,
                                swaps_made, swaps_avoided)
        values (of_tenant, enqueue.queue, case when is_due then 0 else 1 end, case when is_due then 1 else 0 end,
                0, 0, 0, 0, 0, 0);
    return new_id;
end
$$;
