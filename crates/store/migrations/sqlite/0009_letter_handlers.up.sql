-- True: a successful run resolves the dead letter that it handles. Only for triggers with the source `dead_letter`.
alter table triggers add column handles integer not null default 0;

create table letter_handlers (
    -- Dead-letter triggers that ran for a dead letter, with the outcome of each.

    letter blob not null,
    trigger_id blob not null,
    tenant integer not null,
    -- `started`, `succeeded` or `failed`. Only an operation on a runtime is recorded when it starts.
    outcome text not null check (outcome in ('started', 'succeeded', 'failed')),
    -- When it ended, or started.
    at integer not null,
    -- Operation that the run requested. Null: another target.
    operation blob,
    -- Error of a failed run.
    error text,
    primary key (letter, trigger_id)
) without rowid;
