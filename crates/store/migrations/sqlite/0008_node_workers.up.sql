-- Node whose process the worker belongs to. Null: a worker outside of the server.
alter table workers add column node text;
create index workers_node on workers (node) where node is not null;
