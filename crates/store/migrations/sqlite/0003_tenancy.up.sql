-- Moves with every change to tokens: a node that sees it unchanged may go by what it remembers. 0: no token was ever made.
create table access (
    id integer primary key check (id = 1),
    version integer not null
);
insert into access (id, version) values (1, 0);

-- Tokens by the hash of their text, which is nowhere. A revoked one stays, so that it can be told who had what.
create table tokens (
    id blob primary key not null,
    tenant integer not null,
    hash blob not null unique,
    name text not null,
    role text not null,
    rights text not null,
    queues text,
    serves text,
    parent blob,
    created_by text not null,
    created_at integer not null,
    expires_at integer,
    revoked_at integer,
    revoked_by text,
    used_at integer
);
create index tokens_tenant on tokens (tenant, id);

-- Which tenant a role of the database speaks for in SQL; used on PostgreSQL only.
create table database_roles (
    role text primary key not null,
    tenant integer not null,
    granted_at integer not null
);
