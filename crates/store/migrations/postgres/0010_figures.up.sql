-- How long each kind of work takes, waits and loads, as sketches, and how often what was said of it held.
create table figures (
    tenant bigint not null,
    kind text collate "C" not null,
    affinity text collate "C" not null,
    run json not null,
    load json not null,
    wait json not null,
    answers double precision not null,
    within_p50 double precision not null,
    within_p90 double precision not null,
    updated_at timestamptz not null,
    primary key (tenant, kind, affinity)
);
