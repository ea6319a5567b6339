drop table dead_letters;
alter table history drop column error;
