drop function upsert_signal;
alter table signals drop column epoch;
alter table signals drop column kind;
