-- How much of a worker that serves several tenants one of them gets, against the others' one.
alter table quotas add column weight bigint;
