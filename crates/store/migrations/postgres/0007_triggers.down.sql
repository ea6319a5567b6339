drop table kv;
drop table hook_receipts;
drop table cron_slots;
drop table outbox;
drop table trigger_clock;
drop table triggers;
create table outbox (
    id uuid primary key,
    tenant bigint not null,
    source text not null,
    op text not null,
    job uuid,
    body json not null,
    created_at timestamptz not null,
    due_at timestamptz not null
);
create index outbox_due on outbox (due_at, id);
