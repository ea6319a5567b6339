-- A few slots that many runtimes take turns in. One node at a time runs a pool; `state` is what it wrote down last.
create table pools (
    tenant bigint not null,
    name text collate "C" not null,
    spec json not null,
    state json not null,
    node text collate "C",
    lease_until timestamptz,
    principal text not null,
    created_at timestamptz not null,
    updated_at timestamptz not null,
    primary key (tenant, name)
);
create index pools_lease on pools (lease_until);
