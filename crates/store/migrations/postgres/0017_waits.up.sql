-- Waiting in workflows: what open entries of a journal wait for, and what wakes a suspended job.

alter table journals add column wake_keys json;
comment on column journals.wake_keys is
    'Keys of the entries that wake the suspended job: array of text. Null: not suspended.';
alter table journals add column wake_count integer;
comment on column journals.wake_count is 'Number of these entries that must be resolved.';

alter table journal_entries add column input json;
comment on column journal_entries.input is
    'What the operation waits for, for example {name, match} of an event. Null: nothing.';
alter table journal_entries add column due_at timestamptz;
comment on column journal_entries.due_at is
    'Time at which the open operation resolves by itself: the end of a sleep, or a timeout. Null: never.';
alter table journal_entries add column pending integer;
comment on column journal_entries.pending is
    'Number of children of the open operation that have not ended. Null: it has no children.';
create index journal_entries_due on journal_entries (due_at, job, position) where due_at is not null;
create index journal_entries_ready on journal_entries (job, position) where pending = 0;
comment on column journal_entries.op is '`step`, `sleep`, `event`, `approval`, `child` or `publish`.';

create table job_events (
    job uuid not null,
    number integer not null,
    tenant bigint not null,
    name text collate "C" not null,
    idempotency_key text collate "C",
    principal text not null,
    at timestamptz not null,
    consumed_by text collate "C",
    data json not null,
    primary key (job, number),
    unique (job, idempotency_key)
);
comment on table job_events is 'Signal events: events that were sent to one job.';
comment on column job_events.number is 'Number of the event of the job, from 1.';
comment on column job_events.idempotency_key is
    'Idempotency key of the sender. A second event with the same key is a duplicate.';
comment on column job_events.principal is 'Principal that sent the event.';
comment on column job_events.consumed_by is 'Key of the entry of the journal that got the event. Null: none yet.';

create table journal_children (
    child uuid primary key,
    tenant bigint not null,
    job uuid not null,
    position integer not null,
    number integer not null,
    state text
);
create index journal_children_entry on journal_children (job, position, number);
comment on table journal_children is 'Jobs that a step of another job started.';
comment on column journal_children.job is 'Job of the entry that started the child.';
comment on column journal_children.position is 'Position of the entry that started the child.';
comment on column journal_children.number is 'Place of the child in the list of the entry, from 1.';
comment on column journal_children.state is 'Final state of the child. Null: not ended.';
