-- What this installation calls itself on the engines that it drives: containers of another one are not ours.
create table installation (
    id integer primary key check (id = 1),
    instance text collate "C" not null
);
insert into installation (id, instance) values (1, substr(replace(gen_random_uuid()::text, '-', ''), 1, 16));

-- Nodes that drive an engine.
create table engine_nodes (
    name text collate "C" primary key,
    labels json not null,
    fault text,
    seen_at timestamptz not null
);

create table runtimes (
    tenant bigint not null,
    name text collate "C" not null,
    spec json not null,
    env json not null,
    node text collate "C",
    status text collate "C" not null,
    container_id text,
    current_image text,
    endpoint text,
    state_path text,
    health text,
    health_source text,
    health_details text,
    health_at timestamptz,
    deleting boolean not null default false,
    principal text not null,
    created_at timestamptz not null,
    updated_at timestamptz not null,
    started_at timestamptz,
    stopped_at timestamptz,
    removed_at timestamptz,
    last_op_at timestamptz,
    primary key (tenant, name)
);
create index runtimes_node on runtimes (node, tenant, name);

-- One row per try: what was asked for, by whom, and what came of it. It stays when its runtime is gone.
create table operations (
    id uuid primary key,
    tenant bigint not null,
    runtime text collate "C" not null,
    kind text collate "C" not null,
    source text collate "C" not null,
    source_ref text,
    actor text not null,
    image_ref text,
    container_id text,
    outcome text,
    error_code text,
    error_message text,
    requested_at timestamptz not null,
    started_at timestamptz,
    finished_at timestamptz,
    correlation_id uuid not null,
    job uuid,
    node text collate "C"
);
create index operations_runtime on operations (tenant, runtime, id);
create index operations_job on operations (job) where job is not null;
create index operations_open on operations (tenant, runtime) where finished_at is null;
create index operations_node on operations (node, tenant) where finished_at is null;

create table healths (
    id uuid primary key,
    tenant bigint not null,
    runtime text collate "C" not null,
    status text collate "C" not null,
    source text collate "C" not null,
    details text not null,
    container_id text,
    observed_at timestamptz not null
);
create index healths_runtime on healths (tenant, runtime, id);
