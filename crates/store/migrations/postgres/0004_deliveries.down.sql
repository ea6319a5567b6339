drop table delivery_attempts;
drop table deliveries;
drop table endpoints;
