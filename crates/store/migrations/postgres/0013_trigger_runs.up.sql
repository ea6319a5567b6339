-- How runs of triggers went, where somebody looks or waits: those of scripts, with their logs, and of `sync` triggers.
create table trigger_runs (
    id uuid primary key,
    tenant bigint not null,
    trigger_id uuid not null,
    event_id uuid not null,
    attempt integer not null,
    outcome text collate "C" not null,
    at timestamptz not null,
    duration_ms bigint,
    script_id uuid,
    job uuid,
    delivery uuid,
    error json,
    result json,
    log json not null
);
create index trigger_runs_trigger on trigger_runs (trigger_id, id);
create index trigger_runs_event on trigger_runs (event_id, trigger_id);
create index trigger_runs_at on trigger_runs (at);

-- What a principal may do is asked by its name whenever one of its triggers runs.
create index tokens_name on tokens (tenant, name);
