-- The keys that tenants' secrets are sealed with, each wrapped by the master key, which is in no database.
create table secret_keys (
    id blob primary key not null,
    tenant integer not null,
    wrapped text not null
);
create index secret_keys_tenant on secret_keys (tenant, id);
