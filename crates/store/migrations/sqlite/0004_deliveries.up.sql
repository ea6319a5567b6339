-- Where deliveries go: one row per tenant and origin, with its circuit: failures in a row, and until when it is left
-- alone.
create table endpoints (
    id integer primary key autoincrement,
    tenant integer not null,
    origin text not null,
    failures integer not null default 0,
    open_until integer,
    last_error text,
    created_at integer not null,
    unique (tenant, origin)
);

-- What is to be sent, written by the transaction in which it happened. `due_at` is set until it has ended; while an
-- attempt is under way `leased_at` is set too and `due_at` says when it comes back if its node is gone.
create table deliveries (
    seq integer primary key autoincrement,
    id blob not null unique,
    tenant integer not null,
    endpoint integer not null,
    source text not null,
    op text not null,
    job blob,
    trigger_id blob,
    event_id blob,
    dead_letter blob,
    letter blob,
    principal text not null,
    depth integer not null,
    url text not null,
    method text not null,
    headers text not null,
    secrets text not null,
    body text not null,
    timeout_ms integer not null,
    retry text not null,
    max_attempts integer not null,
    state text not null,
    attempt integer not null default 0,
    failures integer not null default 0,
    tries_left integer not null,
    wait_s integer,
    status integer,
    error text,
    created_at integer not null,
    due_at integer,
    leased_at integer,
    give_up_at integer not null,
    ended_at integer
);
create index deliveries_due on deliveries (endpoint, due_at, seq) where due_at is not null;
create index deliveries_give_up on deliveries (give_up_at) where due_at is not null;
create index deliveries_tenant on deliveries (tenant, seq);
create index deliveries_state on deliveries (tenant, state, seq);
create index deliveries_job on deliveries (job, seq) where job is not null;
create index deliveries_ended on deliveries (state, ended_at) where ended_at is not null;

create table delivery_attempts (
    delivery blob not null,
    attempt integer not null,
    at integer not null,
    duration_ms integer not null,
    status integer,
    error text,
    response text,
    primary key (delivery, attempt)
) without rowid;
