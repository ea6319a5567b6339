delete from history where event = 'suspended';
alter table history drop constraint history_event_check;
alter table history add constraint history_event_check
    check (event in ('finished', 'failed', 'canceled', 'expired', 'released', 'snoozed', 'loop_stopped'));
comment on column history.event is
    '`failed`, `expired`, `released` or `snoozed`; `loop_stopped` if a trigger was skipped. For a deleted job: '
    '`finished`, `failed` or `canceled`.';
comment on column jobs.state is '`scheduled`, `queued`, `loading` or `working`.';
comment on column jobs.due_at is 'Equal to `run_at` while the job is scheduled, else null.';
alter table counters drop column waiting;
alter table counter_deltas drop column waiting;
