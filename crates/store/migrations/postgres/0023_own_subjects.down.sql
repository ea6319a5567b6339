do $$
declare
    new_enqueue constant text := pg_get_functiondef('windlass.enqueue'::regproc);
    added_from constant integer := position('    if enqueue.subject like ''runtime/%'' then' in new_enqueue);
    added_until constant integer := position('    if enqueue.max_attempts is null or' in new_enqueue);
begin
    execute overlay(new_enqueue placing '' from added_from for added_until - added_from);
end
$$;
