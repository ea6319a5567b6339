drop table quarantine;
drop table prunings;
drop table installation;
drop table service;
drop function caller_tenant;
drop table database_roles;
drop table tenants;
