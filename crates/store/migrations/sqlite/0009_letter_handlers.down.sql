drop table letter_handlers;
alter table triggers drop column handles;
