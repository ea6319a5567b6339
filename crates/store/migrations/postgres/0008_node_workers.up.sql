alter table workers add column node text collate "C";
comment on column workers.node is 'Node whose process the worker belongs to. Null: a worker outside of the server.';
create index workers_node on workers (node) where node is not null;
