drop table secret_keys;
drop table quotas;
drop table sessions;
drop table tokens;
drop table access;
