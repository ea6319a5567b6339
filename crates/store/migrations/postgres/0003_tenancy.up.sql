-- Moves with every change to tokens: a node that sees it unchanged may go by what it remembers. 0: no token was ever made.
create table access (
    id integer primary key check (id = 1),
    version bigint not null
);
insert into access (id, version) values (1, 0);

-- Tokens by the hash of their text, which is nowhere. A revoked one stays, so that it can be told who had what.
create table tokens (
    id uuid primary key,
    tenant bigint not null,
    hash bytea not null unique,
    name text collate "C" not null,
    role text not null,
    rights json not null,
    queues json,
    serves json,
    parent uuid,
    created_by text not null,
    created_at timestamptz not null,
    expires_at timestamptz,
    revoked_at timestamptz,
    revoked_by text,
    used_at timestamptz
);
create index tokens_tenant on tokens (tenant, id);

-- Which tenant a role of the database speaks for in SQL.
create table database_roles (
    role text collate "C" primary key,
    tenant bigint not null,
    granted_at timestamptz not null
);

-- The tenant of whoever called a function of ours: never an argument. Whoever may act as the owner of the schema is trusted
-- with everything in it and speaks for the default tenant unless it was given another.
create function caller_tenant() returns bigint
language plpgsql
stable
set search_path = windlass, pg_temp
as $$
declare
    of_role bigint;
begin
    select r.tenant into of_role from database_roles r where r.role = session_user;
    if of_role is null and pg_has_role(session_user, (select nspowner from pg_namespace where nspname = 'windlass'), 'MEMBER') then
        of_role := 2;
    end if;
    if of_role is null then
        raise exception 'the database role % has no tenant', session_user
            using errcode = '42501', hint = format('run: windlass tenant grant-db-role TENANT %s', session_user);
    end if;
    return of_role;
end
$$;

-- The function that was made for one tenant asks who calls it.
do $$
declare
    made constant text := pg_get_functiondef('windlass.enqueue'::regproc);
    asking constant text := replace(made, 'of_tenant constant bigint := 2;', 'of_tenant constant bigint := caller_tenant();');
begin
    if asking = made then
        raise exception 'windlass.enqueue is not the function this migration knows';
    end if;
    execute asking;
end
$$;
revoke execute on all functions in schema windlass from public;
