-- Fan-out of events: an event that starts several runs is stored once, and rows of the outbox refer to it.

create table outbox_events (
    -- Events with several runs. A row is deleted a minute after the last row of the outbox that refers to it.

    id blob primary key not null,
    tenant integer not null,
    -- Source of the event, as in `triggers.source`.
    source text not null,
    -- Operation of the event, for example `set` or `succeeded`.
    op text not null,
    -- Number of triggers that led to the event.
    depth integer not null,
    -- The event without its data: {id, source, op, at, depth} and attributes.
    event text not null,
    -- Data of the event, unchanged.
    data text not null,
    -- Size of `data`.
    data_bytes integer not null,
    created_at integer not null
) without rowid;
create index outbox_events_created on outbox_events (created_at);

create table outbox_fan_outs (
    -- Runs whose rows of the outbox are not written yet: every event of a list for every trigger of a list. The
    -- dispatcher writes them in bounded parts.

    id blob primary key not null,
    tenant integer not null,
    -- Array of the ids of the triggers.
    triggers text not null,
    -- Array of the ids of the events (`outbox_events.id`).
    events text not null,
    -- Number of runs that are written: all triggers of the first event, then those of the second, and so on.
    written integer not null default 0,
    created_at integer not null
) without rowid;
create index outbox_fan_outs_tenant on outbox_fan_outs (tenant, id);

-- Size of the data of the event. Null: a row of an earlier version.
alter table outbox add column data_bytes integer;
-- The data is in `outbox_events`, and `data` is null (JSON).
alter table outbox add column is_shared integer not null default 0;
create index outbox_tenant on outbox (tenant, due_at, id);
create index outbox_shared on outbox (event_id) where is_shared;
