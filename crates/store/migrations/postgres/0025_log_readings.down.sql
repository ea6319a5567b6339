drop table log_parts;
drop table log_readings;
