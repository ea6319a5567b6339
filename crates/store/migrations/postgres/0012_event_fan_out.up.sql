-- Fan-out of events: an event that starts several runs is stored once, and rows of the outbox refer to it.

create table outbox_events (
    id uuid primary key,
    tenant bigint not null,
    source text collate "C" not null,
    op text collate "C" not null,
    depth integer not null,
    event json not null,
    data json not null,
    data_bytes bigint not null,
    created_at timestamptz not null
);
create index outbox_events_created on outbox_events (created_at);
comment on table outbox_events is
    'Events with several runs. A row is deleted a minute after the last row of the outbox that refers to it.';
comment on column outbox_events.source is 'Source of the event, as in `triggers.source`.';
comment on column outbox_events.op is 'Operation of the event, for example `set` or `succeeded`.';
comment on column outbox_events.depth is 'Number of triggers that led to the event.';
comment on column outbox_events.event is 'The event without its data: {id, source, op, at, depth} and attributes.';
comment on column outbox_events.data is 'Data of the event, unchanged.';
comment on column outbox_events.data_bytes is 'Size of `data`.';

create table outbox_fan_outs (
    id uuid primary key,
    tenant bigint not null,
    triggers json not null,
    events json not null,
    written bigint not null default 0,
    created_at timestamptz not null
);
create index outbox_fan_outs_tenant on outbox_fan_outs (tenant, id);
comment on table outbox_fan_outs is
    'Runs whose rows of the outbox are not written yet: every event of a list for every trigger of a list. The '
    'dispatcher writes them in bounded parts.';
comment on column outbox_fan_outs.triggers is 'Array of the ids of the triggers.';
comment on column outbox_fan_outs.events is 'Array of the ids of the events (`outbox_events.id`).';
comment on column outbox_fan_outs.written is
    'Number of runs that are written: all triggers of the first event, then those of the second, and so on.';

alter table outbox add column data_bytes bigint;
alter table outbox add column is_shared boolean not null default false;
create index outbox_tenant on outbox (tenant, due_at, id);
create index outbox_shared on outbox (event_id) where is_shared;
comment on column outbox.data_bytes is 'Size of the data of the event. Null: a row of an earlier version.';
comment on column outbox.is_shared is 'The data is in `outbox_events`, and `data` is null (JSON).';
