-- Runtimes: nodes with a container engine, runtimes, operations, health, pools, container logs between nodes, and the
-- files and batches of the OpenAI-compatible API.

-- Nodes
-- -----

create table engine_nodes (
    name text collate "C" primary key,
    labels json not null,
    fault text,
    seen_at timestamptz not null,
    slots bigint
);
comment on table engine_nodes is 'Nodes that drive a container engine. Each node updates its row every 5 seconds.';
comment on column engine_nodes.labels is 'Labels for placement: {name: value}.';
comment on column engine_nodes.fault is 'Why the engine of the node does not answer. Null: it answers.';
comment on column engine_nodes.seen_at is 'Last heartbeat. After 15 seconds without one the node is lost.';
comment on column engine_nodes.slots is 'Maximum number of runtimes that run on the node at a time. Null: unlimited.';

-- Runtimes
-- --------

create table runtimes (
    tenant bigint not null,
    name text collate "C" not null,
    spec json not null,
    env json not null,
    node text collate "C",
    status text collate "C" not null check (status in ('running', 'stopped', 'removed')),
    container_id text,
    current_image text,
    endpoint text,
    state_path text,
    health text check (health in ('healthy', 'probe_failed', 'exited', 'oom', 'inspect_unhealthy',
        'container_disappeared')),
    health_source text check (health_source in ('docker_event', 'inspect', 'probe')),
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
comment on table runtimes is 'Runtimes: declared containers and their current state.';
comment on column runtimes.spec is
    'Declaration, except the environment: image, command, ports, volumes, network, limits, probe, desired state, time '
    'to live, placement.';
comment on column runtimes.env is 'Environment variables: {name: value}, with encrypted values.';
comment on column runtimes.node is 'Node of the runtime (`engine_nodes.name`). Null: not placed yet.';
comment on column runtimes.status is '`running`, `stopped` or `removed`. `removed`: there is no container.';
comment on column runtimes.current_image is 'Image of the current container.';
comment on column runtimes.endpoint is 'Address of the published port. Null: not published.';
comment on column runtimes.state_path is 'Directory on the node that contains the volumes. It is never deleted.';
comment on column runtimes.health is
    'Last observation: `healthy`, `probe_failed`, `exited`, `oom`, `inspect_unhealthy` or `container_disappeared`. '
    'Null: none since the last operation.';
comment on column runtimes.health_source is '`docker_event`, `inspect` or `probe`.';
comment on column runtimes.health_at is 'Time of the observation. An older observation is ignored.';
comment on column runtimes.deleting is 'True if the runtime is deleted as soon as its container is removed.';
comment on column runtimes.principal is 'Principal that declared the runtime.';
comment on column runtimes.removed_at is 'Time at which the container was removed.';
comment on column runtimes.last_op_at is 'End of the last operation.';

create table operations (
    id uuid primary key,
    tenant bigint not null,
    runtime text collate "C" not null,
    kind text collate "C" not null
        check (kind in ('start', 'stop', 'restart', 'patch', 'cleanup_container', 'reconcile_adopt',
        'reconcile_dispose')),
    source text collate "C" not null
        check (source in ('api', 'cli', 'stream', 'auto_ttl', 'auto_reconcile', 'auto_scale')),
    source_ref text,
    actor text not null,
    image_ref text,
    container_id text,
    outcome text check (outcome in ('success', 'failure')),
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
comment on table operations is 'Log of operations on runtimes: one row per attempt. Rows outlive their runtime.';
comment on column operations.kind is
    '`start`, `stop`, `restart`, `patch`, `cleanup_container`, `reconcile_adopt` or `reconcile_dispose`.';
comment on column operations.source is
    '`api`, `cli`, `stream` (a trigger), `auto_ttl`, `auto_reconcile` or `auto_scale`.';
comment on column operations.source_ref is
    'Detail of the source: the id of the event of a trigger, or the reason of an automatic operation.';
comment on column operations.actor is 'Principal or task that requested the operation.';
comment on column operations.image_ref is 'Image of a start, a restart or a patch.';
comment on column operations.outcome is '`success` or `failure`. Null: not finished.';
comment on column operations.error_code is
    'Code of the failure. With `success`: `replay_no_op` if there was nothing to do.';
comment on column operations.correlation_id is 'Id that all attempts of one requested operation share.';
comment on column operations.job is 'Job that executes the operation. Null: recorded without a job.';
comment on column operations.node is 'Node that executes the operation. Null: not assigned yet.';

create table healths (
    id uuid primary key,
    tenant bigint not null,
    runtime text collate "C" not null,
    status text collate "C" not null check (status in ('healthy', 'probe_failed', 'exited', 'oom', 'inspect_unhealthy',
        'container_disappeared')),
    source text collate "C" not null check (source in ('docker_event', 'inspect', 'probe')),
    details text not null,
    container_id text,
    observed_at timestamptz not null
);
create index healths_runtime on healths (tenant, runtime, id);
comment on table healths is 'History of the health of runtimes: one row per observation that changed it.';
comment on column healths.status is 'Observation, as in `runtimes.health`.';
comment on column healths.source is '`docker_event`, `inspect` or `probe`.';
comment on column healths.details is 'Message of the engine or of the probe.';

-- Pools
-- -----

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
comment on table pools is 'Pools: slots that several runtimes share. One node at a time runs a pool, under a lease.';
comment on column pools.spec is 'Declaration: slots, memory budget, members, queue, handler, placement.';
comment on column pools.state is
    'State of the members and counts of loads and swaps, written by the node that runs the pool.';
comment on column pools.node is 'Node that runs the pool. Null: none.';
comment on column pools.lease_until is 'Expiry of the lease of that node.';
comment on column pools.principal is 'Principal that declared the pool.';

-- Container logs
-- --------------

-- Unlogged: the rows need neither WAL nor a place in backups. A crash of the database ends all readings.
create unlogged table log_readings (
    id uuid primary key,
    tenant bigint not null,
    runtime text collate "C" not null,
    container_id text not null,
    node text collate "C" not null,
    tail bigint not null,
    follow boolean not null,
    read_at timestamptz not null,
    served_at timestamptz,
    ended_at timestamptz,
    fault_code text collate "C",
    fault text
);
create index log_readings_node on log_readings (node, id) where served_at is null;
comment on table log_readings is
    'Requests of one node for a container log on another node. Both sides renew their heartbeat.';
comment on column log_readings.node is 'Node that has the container.';
comment on column log_readings.tail is 'Number of lines to start with.';
comment on column log_readings.follow is 'True if later output is read too.';
comment on column log_readings.read_at is 'Last heartbeat of the reader.';
comment on column log_readings.served_at is
    'Last heartbeat of the node that has the container. Null: it has not started.';
comment on column log_readings.ended_at is 'Time after which no more output follows. Null: more may follow.';
comment on column log_readings.fault_code is 'Code of the error of the engine. Null: no error.';
comment on column log_readings.fault is 'Message of the error of the engine.';

-- Unlogged, like log_readings.
create unlogged table log_parts (
    tenant bigint not null,
    reading uuid not null,
    number bigint not null,
    bytes bytea not null,
    primary key (reading, number)
);
comment on table log_parts is 'Log output that the reader has not consumed yet.';
comment on column log_parts.reading is 'Request that the part belongs to (`log_readings.id`).';
comment on column log_parts.number is 'Position of the part in the log.';
comment on column log_parts.bytes is 'Output, at most 64 KiB.';

-- OpenAI-compatible API
-- ---------------------

create table openai_files (
    id text collate "C" primary key,
    tenant bigint not null,
    filename text not null,
    purpose text collate "C" not null,
    bytes bigint not null,
    sha256 bytea not null,
    content bytea,
    location text collate "C",
    principal text collate "C" not null,
    created_at timestamptz not null,
    expires_at timestamptz
);
create index openai_files_tenant on openai_files (tenant, id);
create index openai_files_expiry on openai_files (expires_at) where expires_at is not null;
comment on table openai_files is 'Files of the OpenAI-compatible API.';
comment on column openai_files.id is 'Id in the format of that API.';
comment on column openai_files.purpose is 'Purpose in the terms of that API.';
comment on column openai_files.bytes is 'Size in bytes.';
comment on column openai_files.sha256 is 'SHA-256 of the content.';
comment on column openai_files.content is 'Content of a file of at most 64 KiB. Null: the content is at `location`.';
comment on column openai_files.location is 'Name of the blob in the artifact storage. Null: the content is in the row.';
comment on column openai_files.expires_at is 'Null: the file is kept until it is deleted.';

create table openai_batches (
    id text collate "C" primary key,
    tenant bigint not null,
    endpoint text not null,
    input_file text collate "C" not null,
    completion_window text not null,
    status text collate "C" not null,
    metadata json,
    errors json not null,
    output_file text collate "C",
    error_file text collate "C",
    files_kept_s bigint,
    total bigint not null default 0,
    made bigint not null default 0,
    completed bigint not null default 0,
    failed bigint not null default 0,
    principal text collate "C" not null,
    created_at timestamptz not null,
    expires_at timestamptz not null,
    in_progress_at timestamptz,
    finalizing_at timestamptz,
    cancelling_at timestamptz,
    ended_at timestamptz
);
create index openai_batches_tenant on openai_batches (tenant, id);
create index openai_batches_open on openai_batches (id) where ended_at is null;
create index openai_batches_ended on openai_batches (ended_at) where ended_at is not null;
comment on table openai_batches is
    'Batches of the OpenAI-compatible API. The lines of the input file become jobs of one run, which has the id of '
    'the batch as its name.';
comment on column openai_batches.id is 'Id in the format of that API.';
comment on column openai_batches.endpoint is 'Path that each line is sent to, for example `/v1/chat/completions`.';
comment on column openai_batches.input_file is 'File with the requests (`openai_files.id`).';
comment on column openai_batches.completion_window is 'Time limit as requested, for example `24h`.';
comment on column openai_batches.status is
    '`validating`, `failed`, `in_progress`, `finalizing`, `completed`, `expired`, `cancelling` or `cancelled`.';
comment on column openai_batches.errors is 'Array of the faults of the input file: {code, message, line}.';
comment on column openai_batches.output_file is 'File with the responses. Null: none yet, or no response.';
comment on column openai_batches.error_file is 'File with the errors. Null: none yet, or no error.';
comment on column openai_batches.files_kept_s is
    'Retention of the two files. Null: they are kept until they are deleted.';
comment on column openai_batches.total is 'Number of lines of the input file.';
comment on column openai_batches.made is 'Number of lines with a job.';
comment on column openai_batches.completed is 'Number of succeeded lines. Written at the end of the batch.';
comment on column openai_batches.failed is 'Number of failed lines. Written at the end of the batch.';
comment on column openai_batches.expires_at is 'End of the completion window.';
