drop table healths;
drop table operations;
drop table runtimes;
drop table engine_nodes;
drop table installation;
