drop index workers_node;
alter table workers drop column node;
