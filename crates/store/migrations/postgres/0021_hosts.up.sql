-- How many runtimes a node's engine takes at once; no bound where it says nothing.
alter table engine_nodes add column slots bigint;
