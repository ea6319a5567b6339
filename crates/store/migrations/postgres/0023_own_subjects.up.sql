-- The function for anyone's own transaction refuses what the API refuses: subjects that operations on runtimes hold, and a
-- process that is done to nothing.
do $$
declare
    old_enqueue constant text := pg_get_functiondef('windlass.enqueue'::regproc);
    new_enqueue constant text := replace(old_enqueue, '    if enqueue.max_attempts is null or', '    if enqueue.subject like ''runtime/%'' then
        raise exception ''subject must not begin with runtime/: operations on runtimes hold those subjects'' using errcode = ''22023'';
    end if;
    if enqueue.process is not null and enqueue.subject is null then
        raise exception ''process needs a subject: say what the process is done to, or leave it out'' using errcode = ''22023'';
    end if;
    if enqueue.max_attempts is null or');
begin
    if new_enqueue = old_enqueue then
        raise exception 'windlass.enqueue is not the function this migration knows';
    end if;
    execute new_enqueue;
end
$$;
