create table triggers (
    id uuid primary key,
    tenant bigint not null,
    name text collate "C" not null,
    source text collate "C" not null,
    filter json not null,
    target json not null,
    mode text not null,
    retry json not null,
    max_attempts integer not null,
    enabled boolean not null,
    principal text not null,
    created_at timestamptz not null,
    updated_at timestamptz not null,
    fired bigint not null default 0,
    failed bigint not null default 0,
    loops_stopped bigint not null default 0,
    last_fired_at timestamptz,
    last_error text,
    next_at timestamptz,
    unique (tenant, name)
);
create index triggers_tenant on triggers (tenant, id);
create index triggers_next on triggers (next_at, id) where next_at is not null;

-- Moved by every change of a trigger, so that each transaction can tell whether what its node knows is still true.
create table trigger_clock (
    id integer primary key check (id = 1),
    version bigint not null
);
insert into trigger_clock (id, version) values (1, 0);

-- What is to be started: one row per event and trigger, written by the transaction in which the event happened. While a
-- dispatcher has it, `lease` is set and `due_at` says when it comes back if the dispatcher is gone.
drop table outbox;
create table outbox (
    id uuid primary key,
    tenant bigint not null,
    trigger_id uuid not null,
    event_id uuid not null,
    source text collate "C" not null,
    op text collate "C" not null,
    depth integer not null,
    event json not null,
    data json not null,
    created_at timestamptz not null,
    due_at timestamptz not null,
    lease uuid,
    wait_s bigint,
    attempts json not null,
    unique (trigger_id, event_id)
);
create index outbox_due on outbox (due_at, id);

-- Slots of schedules that have fired: at most once each, on any number of nodes.
create table cron_slots (
    trigger_id uuid not null,
    slot_at timestamptz not null,
    fired_at timestamptz not null,
    primary key (trigger_id, slot_at)
);
create index cron_slots_fired on cron_slots (fired_at);

-- Messages that a signed hook has taken: the same one again is refused.
create table hook_receipts (
    trigger_id uuid not null,
    message text collate "C" not null,
    received_at timestamptz not null,
    primary key (trigger_id, message)
);
create index hook_receipts_received on hook_receipts (received_at);

create table kv (
    tenant bigint not null,
    collection text collate "C" not null,
    key text collate "C" not null,
    value json not null,
    version bigint not null,
    created_at timestamptz not null,
    updated_at timestamptz not null,
    primary key (tenant, collection, key)
);
