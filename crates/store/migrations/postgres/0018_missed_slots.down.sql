alter table triggers drop column last_missed_at;
alter table triggers drop column missed;
