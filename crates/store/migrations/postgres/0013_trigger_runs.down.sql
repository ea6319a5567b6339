drop index tokens_name;
drop table trigger_runs;
