-- Runtimes: nodes with a container engine, runtimes, operations, health, pools, container logs between nodes, and the
-- files and batches of the OpenAI-compatible API.

-- Nodes
-- -----

create table engine_nodes (
    -- Nodes that drive a container engine. Each node updates its row every 5 seconds.

    name text primary key not null,
    -- Labels for placement: {name: value}.
    labels text not null,
    -- Why the engine of the node does not answer. Null: it answers.
    fault text,
    -- Last heartbeat. After 15 seconds without one the node is lost.
    seen_at integer not null,
    -- Maximum number of runtimes that run on the node at a time. Null: unlimited.
    slots integer
) without rowid;

-- Runtimes
-- --------

create table runtimes (
    -- Runtimes: declared containers and their current state.

    tenant integer not null,
    name text not null,
    -- Declaration, except the environment: image, command, ports, volumes, network, limits, probe, desired state, time
    -- to live, placement.
    spec text not null,
    -- Environment variables: {name: value}, with encrypted values.
    env text not null,
    -- Node of the runtime (`engine_nodes.name`). Null: not placed yet.
    node text,
    -- `running`, `stopped` or `removed`. `removed`: there is no container.
    status text not null check (status in ('running', 'stopped', 'removed')),
    container_id text,
    -- Image of the current container.
    current_image text,
    -- Address of the published port. Null: not published.
    endpoint text,
    -- Directory on the node that contains the volumes. It is never deleted.
    state_path text,
    -- Last observation: `healthy`, `probe_failed`, `exited`, `oom`, `inspect_unhealthy` or `container_disappeared`.
    -- Null: none since the last operation.
    health text check (health in ('healthy', 'probe_failed', 'exited', 'oom', 'inspect_unhealthy',
        'container_disappeared')),
    -- `docker_event`, `inspect` or `probe`.
    health_source text check (health_source in ('docker_event', 'inspect', 'probe')),
    health_details text,
    -- Time of the observation. An older observation is ignored.
    health_at integer,
    -- True if the runtime is deleted as soon as its container is removed.
    deleting integer not null default 0,
    -- Principal that declared the runtime.
    principal text not null,
    created_at integer not null,
    updated_at integer not null,
    started_at integer,
    stopped_at integer,
    -- Time at which the container was removed.
    removed_at integer,
    -- End of the last operation.
    last_op_at integer,
    primary key (tenant, name)
) without rowid;
create index runtimes_node on runtimes (node, tenant, name);

create table operations (
    -- Log of operations on runtimes: one row per attempt. Rows outlive their runtime.

    id blob primary key not null,
    tenant integer not null,
    runtime text not null,
    -- `start`, `stop`, `restart`, `patch`, `cleanup_container`, `reconcile_adopt` or `reconcile_dispose`.
    kind text not null check (kind in ('start', 'stop', 'restart', 'patch', 'cleanup_container', 'reconcile_adopt',
        'reconcile_dispose')),
    -- `api`, `cli`, `stream` (a trigger), `auto_ttl`, `auto_reconcile` or `auto_scale`.
    source text not null check (source in ('api', 'cli', 'stream', 'auto_ttl', 'auto_reconcile', 'auto_scale')),
    -- Detail of the source: the id of the event of a trigger, or the reason of an automatic operation.
    source_ref text,
    -- Principal or task that requested the operation.
    actor text not null,
    -- Image of a start, a restart or a patch.
    image_ref text,
    container_id text,
    -- `success` or `failure`. Null: not finished.
    outcome text check (outcome in ('success', 'failure')),
    -- Code of the failure. With `success`: `replay_no_op` if there was nothing to do.
    error_code text,
    error_message text,
    requested_at integer not null,
    started_at integer,
    finished_at integer,
    -- Id that all attempts of one requested operation share.
    correlation_id blob not null,
    -- Job that executes the operation. Null: recorded without a job.
    job blob,
    -- Node that executes the operation. Null: not assigned yet.
    node text
) without rowid;
create index operations_runtime on operations (tenant, runtime, id);
create index operations_job on operations (job) where job is not null;
create index operations_open on operations (tenant, runtime) where finished_at is null;
create index operations_node on operations (node, tenant) where finished_at is null;

create table healths (
    -- History of the health of runtimes: one row per observation that changed it.

    id blob primary key not null,
    tenant integer not null,
    runtime text not null,
    -- Observation, as in `runtimes.health`.
    status text not null check (status in ('healthy', 'probe_failed', 'exited', 'oom', 'inspect_unhealthy',
        'container_disappeared')),
    -- `docker_event`, `inspect` or `probe`.
    source text not null check (source in ('docker_event', 'inspect', 'probe')),
    -- Message of the engine or of the probe.
    details text not null,
    container_id text,
    observed_at integer not null
) without rowid;
create index healths_runtime on healths (tenant, runtime, id);

-- Pools
-- -----

create table pools (
    -- Pools: slots that several runtimes share. One node at a time runs a pool, under a lease.

    tenant integer not null,
    name text not null,
    -- Declaration: slots, memory budget, members, queue, handler, placement.
    spec text not null,
    -- State of the members and counts of loads and swaps, written by the node that runs the pool.
    state text not null,
    -- Node that runs the pool. Null: none.
    node text,
    -- Expiry of the lease of that node.
    lease_until integer,
    -- Principal that declared the pool.
    principal text not null,
    created_at integer not null,
    updated_at integer not null,
    primary key (tenant, name)
) without rowid;
create index pools_lease on pools (lease_until);

-- Container logs
-- --------------

create table log_readings (
    -- Requests of one node for a container log on another node. Both sides renew their heartbeat.

    id blob primary key not null,
    tenant integer not null,
    runtime text not null,
    container_id text not null,
    -- Node that has the container.
    node text not null,
    -- Number of lines to start with.
    tail integer not null,
    -- True if later output is read too.
    follow integer not null,
    -- Last heartbeat of the reader.
    read_at integer not null,
    -- Last heartbeat of the node that has the container. Null: it has not started.
    served_at integer,
    -- Time after which no more output follows. Null: more may follow.
    ended_at integer,
    -- Code of the error of the engine. Null: no error.
    fault_code text,
    -- Message of the error of the engine.
    fault text
) without rowid;
create index log_readings_node on log_readings (node, id) where served_at is null;

create table log_parts (
    -- Log output that the reader has not consumed yet.

    tenant integer not null,
    -- Request that the part belongs to (`log_readings.id`).
    reading blob not null,
    -- Position of the part in the log.
    number integer not null,
    -- Output, at most 64 KiB.
    bytes blob not null,
    primary key (reading, number)
);

-- OpenAI-compatible API
-- ---------------------

create table openai_files (
    -- Files of the OpenAI-compatible API.

    -- Id in the format of that API.
    id text primary key not null,
    tenant integer not null,
    filename text not null,
    -- Purpose in the terms of that API.
    purpose text not null,
    -- Size in bytes.
    bytes integer not null,
    -- SHA-256 of the content.
    sha256 blob not null,
    -- Content of a file of at most 64 KiB. Null: the content is at `location`.
    content blob,
    -- Name of the blob in the artifact storage. Null: the content is in the row.
    location text,
    principal text not null,
    created_at integer not null,
    -- Null: the file is kept until it is deleted.
    expires_at integer
) without rowid;
create index openai_files_tenant on openai_files (tenant, id);
create index openai_files_expiry on openai_files (expires_at) where expires_at is not null;

create table openai_batches (
    -- Batches of the OpenAI-compatible API. The lines of the input file become jobs of one run, which has the id of the
    -- batch as its name.

    -- Id in the format of that API.
    id text primary key not null,
    tenant integer not null,
    -- Path that each line is sent to, for example `/v1/chat/completions`.
    endpoint text not null,
    -- File with the requests (`openai_files.id`).
    input_file text not null,
    -- Time limit as requested, for example `24h`.
    completion_window text not null,
    -- `validating`, `failed`, `in_progress`, `finalizing`, `completed`, `expired`, `cancelling` or `cancelled`.
    status text not null,
    metadata text,
    -- Array of the faults of the input file: {code, message, line}.
    errors text not null,
    -- File with the responses. Null: none yet, or no response.
    output_file text,
    -- File with the errors. Null: none yet, or no error.
    error_file text,
    -- Retention of the two files. Null: they are kept until they are deleted.
    files_kept_s integer,
    -- Number of lines of the input file.
    total integer not null default 0,
    -- Number of lines with a job.
    made integer not null default 0,
    -- Number of succeeded lines. Written at the end of the batch.
    completed integer not null default 0,
    -- Number of failed lines. Written at the end of the batch.
    failed integer not null default 0,
    principal text not null,
    created_at integer not null,
    -- End of the completion window.
    expires_at integer not null,
    in_progress_at integer,
    finalizing_at integer,
    cancelling_at integer,
    ended_at integer
) without rowid;
create index openai_batches_tenant on openai_batches (tenant, id);
create index openai_batches_open on openai_batches (id) where ended_at is null;
create index openai_batches_ended on openai_batches (ended_at) where ended_at is not null;
