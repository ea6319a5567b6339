-- What came in and what ended in each minute of the last day, written by whoever folds the counters.
create table throughput (
    tenant integer not null,
    minute_at integer not null,
    queue text not null,
    enqueued integer not null,
    succeeded integer not null,
    failed integer not null,
    primary key (tenant, minute_at, queue)
) without rowid;
create index throughput_minute on throughput (minute_at);
