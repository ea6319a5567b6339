-- A few slots that many runtimes take turns in. One node at a time runs a pool; `state` is what it wrote down last.
create table pools (
    tenant integer not null,
    name text not null,
    spec text not null,
    state text not null,
    node text,
    lease_until integer,
    principal text not null,
    created_at integer not null,
    updated_at integer not null,
    primary key (tenant, name)
) without rowid;
create index pools_lease on pools (lease_until);
