-- Estimates: what ETAs are computed from and corrected by, beyond the durations.

alter table figures add column estimator json;
comment on column figures.estimator is
    'What estimates learn from ended jobs besides the sketches: the newest durations, the share of retried attempts, how '
    'progress maps to time, and the corrections with their scores. Null: nothing yet.';

alter table workers add column concurrency bigint;
comment on column workers.concurrency is
    'Jobs that the worker runs at the same time, as seen from its claims. Null: not seen yet.';

create table arrival_rates (
    lane bigint primary key,
    tenant bigint not null,
    per_s double precision not null,
    at timestamptz not null
);
comment on table arrival_rates is 'Mean rate at which jobs arrive, by lane. Learned when the jobs end.';
comment on column arrival_rates.per_s is 'Jobs per second. It decays with the time since `at`.';
