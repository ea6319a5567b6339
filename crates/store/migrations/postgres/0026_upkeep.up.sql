-- Retention deletes from the old end of these, in small batches and without end. To wait until a fifth of a large table is dead is
-- too long: whoever looks for what is old would pass over all of it. A vacuum that does not give way keeps its table as it
-- is: that is no reason not to start.
do $$
    declare
        of_many text;
    begin
        foreach of_many in array array['ended', 'history', 'job_tags', 'timeline', 'deliveries', 'delivery_attempts', 'ttfs_events']
        loop
            begin
                set local lock_timeout to '2s';
                execute format('alter table windlass.%I set (autovacuum_vacuum_scale_factor = 0.01,
                    autovacuum_vacuum_insert_scale_factor = 0.05)', of_many);
            exception when lock_not_available then
                raise warning 'windlass.% is being vacuumed and keeps its autovacuum settings', of_many;
            end;
        end loop;
    end $$;
set local lock_timeout to '500ms';

-- When a deletion was last tried: nodes do not repeat each other's, and what cannot be deleted stands in no other's way.
alter table blob_garbage add column tried_at timestamptz not null default 'epoch';
create index blob_garbage_tried_at on blob_garbage (tried_at, since);

-- The mark of the folder in which large artifacts are.
alter table installation add column artifacts text;
