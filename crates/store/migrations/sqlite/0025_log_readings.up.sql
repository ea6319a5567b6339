-- Someone reads the log of a container on another node. When either side was last heard is here: who reads, and the node
-- that serves, once it has begun.
create table log_readings (
    id blob primary key not null,
    tenant integer not null,
    runtime text not null,
    container_id text not null,
    node text not null,
    tail integer not null,
    follow integer not null,
    read_at integer not null,
    served_at integer,
    ended_at integer,
    fault_code text,
    fault text
) without rowid;
create index log_readings_node on log_readings (node, id) where served_at is null;

-- What was told and not read yet.
create table log_parts (
    tenant integer not null,
    reading blob not null,
    number integer not null,
    bytes blob not null,
    primary key (reading, number)
);
