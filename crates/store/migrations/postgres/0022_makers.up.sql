-- Who made a job and what led to it, kept with its last word when it is pruned.
alter table history add column principal text;
alter table history add column triggered_by text;

-- The functions for anyone's own transaction refuse what the API refuses, and an end that was said is the last word.
do $$
declare
    old_enqueue constant text := pg_get_functiondef('windlass.enqueue'::regproc);
    new_enqueue constant text := replace(old_enqueue, '    if enqueue.max_attempts is null or', '    if enqueue.queue like ''windlass.%'' then
        raise exception ''queue must not begin with windlass.: those queues are the program''''s own'' using errcode = ''22023'';
    end if;
    if exists (
        select 1 from unnest(array[enqueue.queue, enqueue.kind, enqueue.process, enqueue.affinity, enqueue.subject,
                                   enqueue.run, enqueue.unique_key, enqueue.concurrency_key] || enqueue.tags) as words(word)
        where word in (''.'', ''..'')) then
        raise exception ''nothing may be called . or ..: no address could name it'' using errcode = ''22023'';
    end if;
    if enqueue.unique_for_s is not null and enqueue.unique_key is null then
        raise exception ''unique_for_s needs a unique_key'' using errcode = ''22023'';
    end if;
    if enqueue.max_attempts is null or');
    old_upsert constant text := pg_get_functiondef('windlass.upsert_signal'::regproc);
    new_upsert constant text := replace(replace(old_upsert,
        'epoch = excluded.epoch, updated_at = excluded.updated_at;',
        'epoch = excluded.epoch, updated_at = excluded.updated_at
        where s.kind is null or s.kind not in (''failed'', ''succeeded'', ''canceled'') or s.kind = upsert_signal.kind;'),
        'set phase = coalesce(upsert_signal.phase, j.phase)',
        'set phase = case when exists (
                select 1 from signals s where s.job = j.id and s.kind in (''failed'', ''succeeded'', ''canceled'')
                    and s.kind <> upsert_signal.kind) then j.phase else coalesce(upsert_signal.phase, j.phase) end');
begin
    if new_enqueue = old_enqueue or length(new_upsert) < length(old_upsert) + 300 then
        raise exception 'windlass.enqueue and windlass.upsert_signal are not the functions this migration knows';
    end if;
    execute new_enqueue;
    execute new_upsert;
end
$$;
