-- How runs of triggers went, where somebody looks or waits: those of scripts, with their logs, and of `sync` triggers.
create table trigger_runs (
    id blob primary key not null,
    tenant integer not null,
    trigger_id blob not null,
    event_id blob not null,
    attempt integer not null,
    outcome text not null,
    at integer not null,
    duration_ms integer,
    script_id blob,
    job blob,
    delivery blob,
    error text,
    result text,
    log text not null
) without rowid;
create index trigger_runs_trigger on trigger_runs (trigger_id, id);
create index trigger_runs_event on trigger_runs (event_id, trigger_id);
create index trigger_runs_at on trigger_runs (at);

-- What a principal may do is asked by its name whenever one of its triggers runs.
create index tokens_name on tokens (tenant, name);
