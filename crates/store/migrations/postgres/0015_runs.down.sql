create or replace function join_run(of_tenant bigint, of_run text, made timestamptz) returns void
language plpgsql
set search_path = windlass, pg_temp
as $$
begin
end
$$;
alter table jobs drop column has_inputs;
drop table run_needs;
drop table run_nodes;
drop table runs;
