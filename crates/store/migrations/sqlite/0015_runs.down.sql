alter table jobs drop column has_inputs;
drop table run_needs;
drop table run_nodes;
drop table runs;
