drop table quotas;
drop table sessions;
