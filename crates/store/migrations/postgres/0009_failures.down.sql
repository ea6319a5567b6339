drop function match_failure_signature;
drop table signatures;
drop table unrepaired;
drop table failure_jobs;
drop table failure_hours;
drop table failure_subjects;
drop table failure_groups;
drop table failure_feed;
