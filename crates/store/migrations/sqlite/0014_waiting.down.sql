delete from history where event = 'suspended';
-- SQLite cannot change a check. The rows are copied.
alter table history rename to history_before;
drop index history_at;
drop index history_subject;
create table history (
    -- Attempts that did not end their job, and the end of deleted jobs. The current attempt of a live job and the last
    -- attempt of an ended job are in the row of the job.

    job blob not null,
    -- Fencing token of the attempt.
    epoch integer not null,
    -- `failed`, `expired`, `released` or `snoozed`; `loop_stopped` if a trigger was skipped. For a deleted job:
    -- `finished`, `failed` or `canceled`.
    event text not null
        check (event in ('finished', 'failed', 'canceled', 'expired', 'released', 'snoozed', 'loop_stopped')),
    tenant integer not null,
    lane integer not null,
    -- End of the attempt.
    at integer not null,
    -- Creation of the job.
    enqueued_at integer not null,
    -- Start of the attempt. Null: the attempt did not start.
    started_at integer,
    -- Number of the attempt.
    attempt integer not null,
    worker blob,
    -- Principal that ended the attempt, if the worker did not.
    actor text,
    -- Code of the error.
    cause text,
    subject text,
    process text,
    -- Error of the attempt.
    error text,
    -- Principal that created the job. Set for deleted jobs only.
    principal text,
    -- Origin of the job, as in `jobs.triggered_by`. Set for deleted jobs only.
    triggered_by text,
    primary key (job, epoch, event)
) without rowid;
insert into history select * from history_before;
drop table history_before;
create index history_at on history (at, job);
create index history_subject on history (tenant, subject, at) where subject is not null;
alter table counters drop column waiting;
alter table counter_deltas drop column waiting;
