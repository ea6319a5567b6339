drop table arrival_rates;
alter table workers drop column concurrency;
alter table figures drop column estimator;
