drop table journal_children;
drop table job_events;
drop index journal_entries_ready;
drop index journal_entries_due;
alter table journal_entries drop column pending;
alter table journal_entries drop column due_at;
alter table journal_entries drop column input;
alter table journals drop column wake_count;
alter table journals drop column wake_keys;
