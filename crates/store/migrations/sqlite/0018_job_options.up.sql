-- Rare options of jobs: deadlines, trace contexts, debounce and batch. A job without such options has no row.

create table job_options (
    -- Options that most jobs do not have. A row lives as long as its job.

    job blob primary key not null,
    tenant integer not null,
    -- Seconds from the creation of the job to its deadline. Null: no deadline.
    deadline_s integer,
    -- Time at which the live job fails. Null: no deadline, or it has been handled.
    due_at integer,
    -- Trace context of the request that created the job, as in the header `traceparent` of W3C Trace Context.
    traceparent text,
    -- Number of requests that gave the job a payload, by debounce or batch. Null: the job takes no further payloads.
    gathered integer
) without rowid;
create index job_options_due on job_options (due_at, job) where due_at is not null;
