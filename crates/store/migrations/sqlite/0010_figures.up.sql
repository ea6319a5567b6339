-- How long each kind of work takes, waits and loads, as sketches, and how often what was said of it held.
create table figures (
    tenant integer not null,
    kind text not null,
    affinity text not null,
    run text not null,
    load text not null,
    wait text not null,
    answers real not null,
    within_p50 real not null,
    within_p90 real not null,
    updated_at integer not null,
    primary key (tenant, kind, affinity)
) without rowid;
