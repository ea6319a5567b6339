alter table triggers add column handles boolean not null default false;
comment on column triggers.handles is
    'True: a successful run resolves the dead letter that it handles. Only for triggers with the source `dead_letter`.';

create table letter_handlers (
    letter uuid not null,
    trigger_id uuid not null,
    tenant bigint not null,
    outcome text not null check (outcome in ('started', 'succeeded', 'failed')),
    at timestamptz not null,
    operation uuid,
    error json,
    primary key (letter, trigger_id)
);
comment on table letter_handlers is 'Dead-letter triggers that ran for a dead letter, with the outcome of each.';
comment on column letter_handlers.outcome is
    '`started`, `succeeded` or `failed`. Only an operation on a runtime is recorded when it starts.';
comment on column letter_handlers.at is 'When it ended, or started.';
comment on column letter_handlers.operation is 'Operation that the run requested. Null: another target.';
comment on column letter_handlers.error is 'Error of a failed run.';
