-- Only on SQLite does the table of jobs change.
-- What is past keeping is found without reading all that is kept.
create index prunings_at on prunings (at);
create index ttfs_hours_hour on ttfs_hours (hour_at);
create index ttfs_buckets_hour on ttfs_buckets (hour_at);
create index failure_hours_hour on failure_hours (hour_at);
