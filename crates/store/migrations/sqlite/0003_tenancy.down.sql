drop table database_roles;
drop table tokens;
drop table access;
