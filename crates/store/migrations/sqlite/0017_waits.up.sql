-- Waiting in workflows: what open entries of a journal wait for, and what wakes a suspended job.

-- Keys of the entries that wake the suspended job: array of text. Null: not suspended.
alter table journals add column wake_keys text;
-- Number of these entries that must be resolved.
alter table journals add column wake_count integer;

-- What the operation waits for, for example {name, match} of an event. Null: nothing.
alter table journal_entries add column input text;
-- Time at which the open operation resolves by itself: the end of a sleep, or a timeout. Null: never.
alter table journal_entries add column due_at integer;
-- Number of children of the open operation that have not ended. Null: it has no children.
alter table journal_entries add column pending integer;
create index journal_entries_due on journal_entries (due_at, job, position) where due_at is not null;
create index journal_entries_ready on journal_entries (job, position) where pending = 0;

create table job_events (
    -- Signal events: events that were sent to one job.

    job blob not null,
    -- Number of the event of the job, from 1.
    number integer not null,
    tenant integer not null,
    name text not null,
    -- Idempotency key of the sender. A second event with the same key is a duplicate.
    idempotency_key text,
    -- Principal that sent the event.
    principal text not null,
    at integer not null,
    -- Key of the entry of the journal that got the event. Null: none yet.
    consumed_by text,
    data text not null,
    primary key (job, number),
    unique (job, idempotency_key)
) without rowid;

create table journal_children (
    -- Jobs that a step of another job started.

    child blob primary key not null,
    tenant integer not null,
    -- Job of the entry that started the child.
    job blob not null,
    -- Position of the entry that started the child.
    position integer not null,
    -- Place of the child in the list of the entry, from 1.
    number integer not null,
    -- Final state of the child. Null: not ended.
    state text
) without rowid;
create index journal_children_entry on journal_children (job, position, number);
