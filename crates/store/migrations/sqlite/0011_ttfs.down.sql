drop table ttfs_alerts;
drop table ttfs_buckets;
drop table ttfs_hours;
drop table ttfs_events;
