-- Runs: groups of jobs with dependencies.

create table runs (
    tenant bigint not null,
    run text collate "C" not null,
    name text collate "C",
    state text collate "C" not null,
    on_failure text collate "C" not null,
    is_open boolean not null,
    live bigint not null,
    succeeded bigint not null,
    failed bigint not null,
    canceled bigint not null,
    skipped bigint not null,
    stopping_at timestamptz,
    canceled_by text,
    webhook json,
    tags json,
    principal text not null,
    depth bigint not null,
    parent text collate "C",
    retried_as text collate "C",
    version bigint not null,
    created_at timestamptz not null,
    finished_at timestamptz,
    primary key (tenant, run)
);
create index runs_created on runs (tenant, created_at, run);
create index runs_stopping on runs (stopping_at) where stopping_at is not null and finished_at is null;
create index runs_finished on runs (finished_at) where finished_at is not null;
comment on table runs is 'Runs: groups of jobs with a common end. `jobs.run` names the run of a job.';
comment on column runs.run is 'Id of the run: given at its start, generated, or the text that the first job named.';
comment on column runs.name is 'Name for people. Several runs may share it.';
comment on column runs.state is '`running`, `succeeded`, `failed` or `canceled`.';
comment on column runs.on_failure is 'What the first failure does to the rest of the run: `cancel` or `continue`.';
comment on column runs.is_open is
    'True if the first job that named the run created it. A later job opens such a run again after its end.';
comment on column runs.live is 'Number of jobs that have not ended. The run ends when it becomes 0.';
comment on column runs.succeeded is 'Number of jobs that succeeded.';
comment on column runs.failed is 'Number of jobs that failed.';
comment on column runs.canceled is 'Number of jobs that were canceled, without the skipped ones.';
comment on column runs.skipped is
    'Number of nodes that did not start although nothing failed. Their jobs are `canceled`.';
comment on column runs.stopping_at is 'Time from which a task cancels the jobs that remain. Null: not stopping.';
comment on column runs.canceled_by is 'Principal that canceled the run.';
comment on column runs.webhook is 'Receiver of the end of the run: {url, secrets}, with encrypted secrets.';
comment on column runs.tags is 'Array of tags.';
comment on column runs.principal is 'Principal that created the run.';
comment on column runs.depth is 'Number of triggers that led to the run.';
comment on column runs.parent is 'Run that this run retries.';
comment on column runs.retried_as is 'Run that retries this run.';
comment on column runs.version is 'Incremented by every change of the run.';
comment on column runs.finished_at is 'End of the run. Null while it runs.';

create table run_nodes (
    tenant bigint not null,
    run text collate "C" not null,
    name text collate "C" not null,
    job uuid not null,
    condition text collate "C" not null,
    unmet bigint not null,
    failed bigint not null,
    outcome text collate "C",
    primary key (tenant, run, name)
);
create index run_nodes_job on run_nodes (job);
comment on table run_nodes is 'Named jobs of runs.';
comment on column run_nodes.name is 'Name of the node in its run.';
comment on column run_nodes.condition is 'Outcomes of the needs that start the node: `success`, `failure` or `always`.';
comment on column run_nodes.unmet is 'Number of needs that have not ended. The job waits while it is above 0.';
comment on column run_nodes.failed is 'Number of needs that failed or were canceled.';
comment on column run_nodes.outcome is '`succeeded`, `failed`, `canceled` or `skipped`. Null: not ended.';

create table run_needs (
    need uuid not null,
    node uuid not null,
    tenant bigint not null,
    run text collate "C" not null,
    primary key (need, node)
);
create index run_needs_node on run_needs (node, need);
comment on table run_needs is 'Needs of nodes: edges of the graphs of runs.';
comment on column run_needs.need is 'Job that must end first. A retried run needs jobs of the run before it.';
comment on column run_needs.node is 'Job that waits for it.';
comment on column run_needs.run is 'Run of the node.';

alter table jobs add column has_inputs boolean not null default false;
comment on column jobs.has_inputs is 'True if the job has needs. A claim then reads its inputs.';

-- Jobs that were pushed with a run before belong to an open run of that id.
insert into runs (tenant, run, state, on_failure, is_open, live, succeeded, failed, canceled, skipped, principal, depth,
    version, created_at, finished_at)
select tenant, run, case when sum(live) > 0 then 'running' when sum(failed) > 0 then 'failed'
        when sum(canceled) > 0 then 'canceled' else 'succeeded' end,
    'continue', true, sum(live), sum(succeeded), sum(failed), sum(canceled), 0, min(principal), 0, 1, min(created_at),
    case when sum(live) = 0 then max(finished_at) end
from (
    select tenant, run, 1 as live, 0 as succeeded, 0 as failed, 0 as canceled, principal, created_at, null::timestamptz as finished_at
    from jobs where run is not null
    union all
    select tenant, run, 0, case state when 'succeeded' then 1 else 0 end, case state when 'failed' then 1 else 0 end,
        case state when 'canceled' then 1 else 0 end, principal, created_at, finished_at
    from ended where run is not null) belonging
group by tenant, run;

-- A job with a run joins it.
create or replace function join_run(of_tenant bigint, of_run text, made timestamptz) returns void
language plpgsql
set search_path = windlass, pg_temp
as $$
begin
    if of_run is not null then
        insert into runs (tenant, run, state, on_failure, is_open, live, succeeded, failed, canceled, skipped, principal,
                          depth, version, created_at)
            values (of_tenant, of_run, 'running', 'continue', true, 1, 0, 0, 0, 0, session_user, 0, 1, made)
            on conflict (tenant, run) do update set live = runs.live + 1, version = runs.version + 1,
                state = case when runs.is_open then 'running' else runs.state end,
                finished_at = case when runs.is_open then null else runs.finished_at end;
    end if;
end
$$;
