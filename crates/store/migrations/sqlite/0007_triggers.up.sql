create table triggers (
    id blob primary key not null,
    tenant integer not null,
    name text not null,
    source text not null,
    filter text not null,
    target text not null,
    mode text not null,
    retry text not null,
    max_attempts integer not null,
    enabled integer not null,
    principal text not null,
    created_at integer not null,
    updated_at integer not null,
    fired integer not null default 0,
    failed integer not null default 0,
    loops_stopped integer not null default 0,
    last_fired_at integer,
    last_error text,
    next_at integer,
    unique (tenant, name)
) without rowid;
create index triggers_tenant on triggers (tenant, id);
create index triggers_next on triggers (next_at, id) where next_at is not null;

-- Moved by every change of a trigger, so that each transaction can tell whether what its node knows is still true.
create table trigger_clock (
    id integer primary key check (id = 1),
    version integer not null
);
insert into trigger_clock (id, version) values (1, 0);

-- What is to be started: one row per event and trigger, written by the transaction in which the event happened. While a
-- dispatcher has it, `lease` is set and `due_at` says when it comes back if the dispatcher is gone.
drop table outbox;
create table outbox (
    id blob primary key not null,
    tenant integer not null,
    trigger_id blob not null,
    event_id blob not null,
    source text not null,
    op text not null,
    depth integer not null,
    event text not null,
    data text not null,
    created_at integer not null,
    due_at integer not null,
    lease blob,
    wait_s integer,
    attempts text not null,
    unique (trigger_id, event_id)
) without rowid;
create index outbox_due on outbox (due_at, id);

-- Slots of schedules that have fired: at most once each, on any number of nodes.
create table cron_slots (
    trigger_id blob not null,
    slot_at integer not null,
    fired_at integer not null,
    primary key (trigger_id, slot_at)
) without rowid;
create index cron_slots_fired on cron_slots (fired_at);

-- Messages that a signed hook has taken: the same one again is refused.
create table hook_receipts (
    trigger_id blob not null,
    message text not null,
    received_at integer not null,
    primary key (trigger_id, message)
) without rowid;
create index hook_receipts_received on hook_receipts (received_at);

create table kv (
    tenant integer not null,
    collection text not null,
    key text not null,
    value text not null,
    version integer not null,
    created_at integer not null,
    updated_at integer not null,
    primary key (tenant, collection, key)
) without rowid;
