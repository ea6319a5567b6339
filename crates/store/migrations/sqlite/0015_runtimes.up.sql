-- What this installation calls itself on the engines that it drives: containers of another one are not ours.
create table installation (
    id integer primary key check (id = 1),
    instance text not null
);
insert into installation (id, instance) values (1, lower(hex(randomblob(8))));

-- Nodes that drive an engine.
create table engine_nodes (
    name text primary key not null,
    labels text not null,
    fault text,
    seen_at integer not null
) without rowid;

create table runtimes (
    tenant integer not null,
    name text not null,
    spec text not null,
    env text not null,
    node text,
    status text not null,
    container_id text,
    current_image text,
    endpoint text,
    state_path text,
    health text,
    health_source text,
    health_details text,
    health_at integer,
    deleting integer not null default 0,
    principal text not null,
    created_at integer not null,
    updated_at integer not null,
    started_at integer,
    stopped_at integer,
    removed_at integer,
    last_op_at integer,
    primary key (tenant, name)
) without rowid;
create index runtimes_node on runtimes (node, tenant, name);

-- One row per try: what was asked for, by whom, and what came of it. It stays when its runtime is gone.
create table operations (
    id blob primary key not null,
    tenant integer not null,
    runtime text not null,
    kind text not null,
    source text not null,
    source_ref text,
    actor text not null,
    image_ref text,
    container_id text,
    outcome text,
    error_code text,
    error_message text,
    requested_at integer not null,
    started_at integer,
    finished_at integer,
    correlation_id blob not null,
    job blob,
    node text
) without rowid;
create index operations_runtime on operations (tenant, runtime, id);
create index operations_job on operations (job) where job is not null;
create index operations_open on operations (tenant, runtime) where finished_at is null;
create index operations_node on operations (node, tenant) where finished_at is null;

create table healths (
    id blob primary key not null,
    tenant integer not null,
    runtime text not null,
    status text not null,
    source text not null,
    details text not null,
    container_id text,
    observed_at integer not null
) without rowid;
create index healths_runtime on healths (tenant, runtime, id);
