alter table engine_nodes drop column slots;
