-- The numbers of deleted tenants are not used again.

alter table installation add column last_tenant bigint not null default 0;
comment on column installation.last_tenant is 'Highest number of a deleted tenant. 0: none was deleted.';
