drop index ttfs_events_newest;
drop index ttfs_events_job;
drop index ttfs_events_error;
