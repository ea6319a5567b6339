do $$
declare
    new_enqueue constant text := pg_get_functiondef('windlass.enqueue'::regproc);
    added_from constant integer := position('    if enqueue.queue like ''windlass.%'' then' in new_enqueue);
    added_until constant integer := position('    if enqueue.max_attempts is null or' in new_enqueue);
    new_upsert constant text := pg_get_functiondef('windlass.upsert_signal'::regproc);
begin
    execute overlay(new_enqueue placing '' from added_from for added_until - added_from);
    execute replace(replace(new_upsert,
        '
        where s.kind is null or s.kind not in (''failed'', ''succeeded'', ''canceled'') or s.kind = upsert_signal.kind;', ';'),
        'set phase = case when exists (
                select 1 from signals s where s.job = j.id and s.kind in (''failed'', ''succeeded'', ''canceled'')
                    and s.kind <> upsert_signal.kind) then j.phase else coalesce(upsert_signal.phase, j.phase) end',
        'set phase = coalesce(upsert_signal.phase, j.phase)');
end
$$;
alter table history drop column triggered_by;
alter table history drop column principal;
