-- Estimates: what ETAs are computed from and corrected by, beyond the durations.

-- What estimates learn from ended jobs besides the sketches: the newest durations, the share of retried attempts, how
-- progress maps to time, and the corrections with their scores. Null: nothing yet.
alter table figures add column estimator text;

-- Jobs that the worker runs at the same time, as seen from its claims. Null: not seen yet.
alter table workers add column concurrency integer;

create table arrival_rates (
    -- Mean rate at which jobs arrive, by lane. Learned when the jobs end.

    lane integer primary key not null,
    tenant integer not null,
    -- Jobs per second. It decays with the time since `at`.
    per_s real not null,
    at integer not null
) without rowid;
