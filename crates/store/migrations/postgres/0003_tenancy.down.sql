do $$
begin
    execute replace(pg_get_functiondef('windlass.enqueue'::regproc),
                    'of_tenant constant bigint := caller_tenant();', 'of_tenant constant bigint := 2;');
end
$$;
drop function caller_tenant();
drop table database_roles;
drop table tokens;
drop table access;
