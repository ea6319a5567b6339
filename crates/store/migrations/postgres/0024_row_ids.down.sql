-- Only on SQLite does the table of jobs change.
drop index prunings_at;
drop index ttfs_hours_hour;
drop index ttfs_buckets_hour;
drop index failure_hours_hour;
