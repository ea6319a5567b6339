-- Events of a tenant, of a job and of an error code, newest first.
create index ttfs_events_newest on ttfs_events (tenant, at, id);
create index ttfs_events_job on ttfs_events (tenant, job, at, id) where job is not null;
create index ttfs_events_error on ttfs_events (tenant, error_code, at, id) where error_code is not null;
