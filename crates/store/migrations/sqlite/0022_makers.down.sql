alter table history drop column triggered_by;
alter table history drop column principal;
