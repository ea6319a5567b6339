drop function record_ttfs_event;
drop view ttfs_slo_breaches;
drop view ttfs_daily_summary;
drop view ttfs_hourly_summary;
drop table ttfs_alerts;
drop table ttfs_buckets;
drop table ttfs_hours;
drop table ttfs_events;
