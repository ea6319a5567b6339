drop table quarantine;
drop table prunings;
drop table installation;
drop table service;
drop table database_roles;
drop table tenants;
