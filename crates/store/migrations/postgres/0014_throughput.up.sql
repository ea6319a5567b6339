-- What came in and what ended in each minute of the last day, written by whoever folds the counters.
create table throughput (
    tenant bigint not null,
    minute_at timestamptz not null,
    queue text not null,
    enqueued bigint not null,
    succeeded bigint not null,
    failed bigint not null,
    primary key (tenant, minute_at, queue)
);
create index throughput_minute on throughput (minute_at);
