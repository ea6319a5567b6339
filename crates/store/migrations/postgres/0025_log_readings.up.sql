-- Someone reads the log of a container on another node. When either side was last heard is here: who reads, and the node
-- that serves, once it has begun.
-- Unlogged, both of them: nothing of it is worth a sync, or a place in a backup. After a crash of the database whoever
-- reads is told that it is over.
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

-- What was told and not read yet.
create unlogged table log_parts (
    tenant bigint not null,
    reading uuid not null,
    number bigint not null,
    bytes bytea not null,
    primary key (reading, number)
);
