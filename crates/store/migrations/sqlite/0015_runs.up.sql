-- Runs: groups of jobs with dependencies.

create table runs (
    -- Runs: groups of jobs with a common end. `jobs.run` names the run of a job.

    tenant integer not null,
    -- Id of the run: given at its start, generated, or the text that the first job named.
    run text not null,
    -- Name for people. Several runs may share it.
    name text,
    -- `running`, `succeeded`, `failed` or `canceled`.
    state text not null,
    -- What the first failure does to the rest of the run: `cancel` or `continue`.
    on_failure text not null,
    -- True if the first job that named the run created it. A later job opens such a run again after its end.
    is_open integer not null,
    -- Number of jobs that have not ended. The run ends when it becomes 0.
    live integer not null,
    -- Number of jobs that succeeded.
    succeeded integer not null,
    -- Number of jobs that failed.
    failed integer not null,
    -- Number of jobs that were canceled, without the skipped ones.
    canceled integer not null,
    -- Number of nodes that did not start although nothing failed. Their jobs are `canceled`.
    skipped integer not null,
    -- Time from which a task cancels the jobs that remain. Null: not stopping.
    stopping_at integer,
    -- Principal that canceled the run.
    canceled_by text,
    -- Receiver of the end of the run: {url, secrets}, with encrypted secrets.
    webhook text,
    -- Array of tags.
    tags text,
    -- Principal that created the run.
    principal text not null,
    -- Number of triggers that led to the run.
    depth integer not null,
    -- Run that this run retries.
    parent text,
    -- Run that retries this run.
    retried_as text,
    -- Incremented by every change of the run.
    version integer not null,
    created_at integer not null,
    -- End of the run. Null while it runs.
    finished_at integer,
    primary key (tenant, run)
) without rowid;
create index runs_created on runs (tenant, created_at, run);
create index runs_stopping on runs (stopping_at) where stopping_at is not null and finished_at is null;
create index runs_finished on runs (finished_at) where finished_at is not null;

create table run_nodes (
    -- Named jobs of runs.

    tenant integer not null,
    run text not null,
    -- Name of the node in its run.
    name text not null,
    job blob not null,
    -- Outcomes of the needs that start the node: `success`, `failure` or `always`.
    condition text not null,
    -- Number of needs that have not ended. The job waits while it is above 0.
    unmet integer not null,
    -- Number of needs that failed or were canceled.
    failed integer not null,
    -- `succeeded`, `failed`, `canceled` or `skipped`. Null: not ended.
    outcome text,
    primary key (tenant, run, name)
) without rowid;
create index run_nodes_job on run_nodes (job);

create table run_needs (
    -- Needs of nodes: edges of the graphs of runs.

    -- Job that must end first. A retried run needs jobs of the run before it.
    need blob not null,
    -- Job that waits for it.
    node blob not null,
    tenant integer not null,
    -- Run of the node.
    run text not null,
    primary key (need, node)
) without rowid;
create index run_needs_node on run_needs (node, need);

-- True if the job has needs. A claim then reads its inputs.
alter table jobs add column has_inputs integer not null default 0;

-- Jobs that were pushed with a run before belong to an open run of that id.
insert into runs (tenant, run, state, on_failure, is_open, live, succeeded, failed, canceled, skipped, principal, depth,
    version, created_at, finished_at)
select tenant, run, case when sum(live) > 0 then 'running' when sum(failed) > 0 then 'failed'
        when sum(canceled) > 0 then 'canceled' else 'succeeded' end,
    'continue', 1, sum(live), sum(succeeded), sum(failed), sum(canceled), 0, min(principal), 0, 1, min(created_at),
    case when sum(live) = 0 then max(finished_at) end
from (
    select tenant, run, 1 as live, 0 as succeeded, 0 as failed, 0 as canceled, principal, created_at, null as finished_at
    from jobs where run is not null
    union all
    select tenant, run, 0, case state when 'succeeded' then 1 else 0 end, case state when 'failed' then 1 else 0 end,
        case state when 'canceled' then 1 else 0 end, principal, created_at, finished_at
    from ended where run is not null) belonging
group by tenant, run;
