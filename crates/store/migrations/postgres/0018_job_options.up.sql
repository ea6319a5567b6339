-- Rare options of jobs: deadlines, trace contexts, debounce and batch. A job without such options has no row.

create table job_options (
    job uuid primary key,
    tenant bigint not null,
    deadline_s bigint,
    due_at timestamptz,
    traceparent text collate "C",
    gathered bigint
);
create index job_options_due on job_options (due_at, job) where due_at is not null;
comment on table job_options is 'Options that most jobs do not have. A row lives as long as its job.';
comment on column job_options.deadline_s is
    'Seconds from the creation of the job to its deadline. Null: no deadline.';
comment on column job_options.due_at is
    'Time at which the live job fails. Null: no deadline, or it has been handled.';
comment on column job_options.traceparent is
    'Trace context of the request that created the job, as in the header `traceparent` of W3C Trace Context.';
comment on column job_options.gathered is
    'Number of requests that gave the job a payload, by debounce or batch. Null: the job takes no further payloads.';
comment on column jobs.has_inputs is
    'True if the job has needs or a trace context. A claim then reads its inputs and its trace context.';
