drop table kv;
drop table hook_receipts;
drop table cron_slots;
drop table outbox;
drop table trigger_clock;
drop table triggers;
create table outbox (
    id blob primary key not null,
    tenant integer not null,
    source text not null,
    op text not null,
    job blob,
    body text not null,
    created_at integer not null,
    due_at integer not null
);
create index outbox_due on outbox (due_at, id);
