-- The job state `waiting`. A waiting job has the `due_at` 9999-12-31T23:59:59Z: `jobs_ready` does not contain it, and
-- neither a claim nor a promotion selects it.

alter table counter_deltas add column waiting bigint not null default 0;
comment on column counter_deltas.waiting is 'Change of the number of waiting jobs.';
alter table counters add column waiting bigint not null default 0;
comment on column counters.waiting is 'Number of waiting jobs.';

comment on column jobs.state is '`waiting`, `scheduled`, `queued`, `loading` or `working`.';
comment on column jobs.due_at is
    'Equal to `run_at` while the job is scheduled, 9999-12-31T23:59:59Z while it waits, else null.';

-- The rows satisfied a stricter check before, so they are not read again.
alter table history drop constraint history_event_check;
alter table history add constraint history_event_check
    check (event in ('finished', 'failed', 'canceled', 'expired', 'released', 'snoozed', 'suspended', 'loop_stopped'))
    not valid;
comment on column history.event is
    '`failed`, `expired`, `released`, `snoozed` or `suspended`; `loop_stopped` if a trigger was skipped. For a deleted '
    'job: `finished`, `failed` or `canceled`.';
