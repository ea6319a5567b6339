drop table abandoned_executions;
drop table calls;
