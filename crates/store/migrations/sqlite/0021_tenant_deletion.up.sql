-- The numbers of deleted tenants are not used again.

-- Highest number of a deleted tenant. 0: none was deleted.
alter table installation add column last_tenant integer not null default 0;
