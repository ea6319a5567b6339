drop function step;
drop table journal_entries;
drop table journals;
alter table jobs drop column has_journal;
