//! Inserts the rows of new jobs, their tags and their rare options.

use domain::{JobId, JobState, Label, Name, Time, TraceContext};

use super::{Extras, PendingJob};
use crate::db::codec::{retry_to_json, to_json};
use crate::db::tx::{Column, Param, Sql, Tx};
use crate::error::StoreError;
use crate::queue::counters::CounterDeltas;

// PostgreSQL gets plain jobs and the counters of their commit in one statement, which is then a transaction by itself.
// Values that all jobs share are parameters: unnesting nine arrays is much slower than unnesting two.
const INSERT_ALIKE: Sql = Sql::new(
    &["insert or fail into jobs (id, payload, tenant, lane, state, run_at, due_at, max_attempts, principal, created_at, updated_at)
       values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $10)"],
    "with counted as (
         insert into counter_deltas
             (tenant, queue, scheduled, queued, running, succeeded, failed, canceled, swaps_made, swaps_avoided, waiting)
         select * from unnest($3::bigint[], $4::text[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[],
             $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[]))
     insert into jobs (id, payload, tenant, lane, state, run_at, due_at, max_attempts, principal, created_at, updated_at)
     select n.id, n.payload, $14::bigint, $15::bigint, $16::text, $17::timestamptz, $18::timestamptz, $19::bigint,
         $20::text, $21::timestamptz, $21::timestamptz
     from unnest($1::uuid[], $2::json[]) as n(id, payload)",
);
const INSERT_PLAIN: Sql = Sql::new(
    &["insert or fail into jobs (id, tenant, lane, state, run_at, due_at, max_attempts, payload, principal, created_at, updated_at)
       values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $10)"],
    "with counted as (
         insert into counter_deltas
             (tenant, queue, scheduled, queued, running, succeeded, failed, canceled, swaps_made, swaps_avoided, waiting)
         select * from unnest($10::bigint[], $11::text[], $12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[],
             $16::bigint[], $17::bigint[], $18::bigint[], $19::bigint[], $20::bigint[]))
     insert into jobs (id, tenant, lane, state, run_at, due_at, max_attempts, payload, principal, created_at, updated_at)
     select n.*, $21, $21 from unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::text[], $5::timestamptz[],
         $6::timestamptz[], $7::bigint[], $8::json[], $9::text[]) n",
);
const INSERT_FULL: Sql = Sql::new(
    &["insert or fail into jobs (id, tenant, lane, state, run_at, due_at, max_attempts, payload, principal,
           subject, process, run, unique_key, unique_until, concurrency_key, retry, timeout_s, tags, webhook, parent,
           triggered_by, depth, has_inputs, created_at, updated_at)
       values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22,
           $23, $24, $24)"],
    "insert into jobs (id, tenant, lane, state, run_at, due_at, max_attempts, payload, principal,
         subject, process, run, unique_key, unique_until, concurrency_key, retry, timeout_s, tags, webhook, parent,
         triggered_by, depth, has_inputs, created_at, updated_at)
     select n.id, n.tenant, n.lane, n.state, n.run_at, n.due_at, n.max_attempts, n.payload, n.principal,
         n.subject, n.process, n.run, n.unique_key, n.unique_until, n.concurrency_key, n.retry, n.timeout_s, n.tags,
         n.webhook, n.parent, n.triggered_by, n.depth, n.has_inputs <> 0, $24, $24
     from unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::text[], $5::timestamptz[],
         $6::timestamptz[], $7::bigint[], $8::json[], $9::text[], $10::text[], $11::text[], $12::text[], $13::text[],
         $14::timestamptz[], $15::text[], $16::json[], $17::bigint[], $18::json[], $19::json[], $20::uuid[],
         $21::text[], $22::bigint[], $23::bigint[]) as n(id, tenant, lane, state, run_at, due_at, max_attempts, payload,
         principal, subject, process, run, unique_key, unique_until, concurrency_key, retry, timeout_s, tags, webhook,
         parent, triggered_by, depth, has_inputs)",
);

/// Inserts the jobs, and the counters of the whole commit.
pub(super) async fn jobs(
    tx: &mut Tx<'_>,
    entries: &[&PendingJob<'_>],
    counters: &CounterDeltas,
) -> Result<(), StoreError> {
    let now = Param::Time(tx.now());
    let (plain, full): (Vec<&PendingJob<'_>>, Vec<&PendingJob<'_>>) =
        entries.iter().copied().partition(|entry| entry.job.extras.is_none());
    let with_counters = tx.is_postgres() && !plain.is_empty();
    let counter_columns = if with_counters { counters.columns() } else { Vec::new() };
    match plain.split_first() {
        None => {}
        Some((first, rest)) if rest.iter().all(|entry| entry.is_like(first)) => {
            let mut columns = vec![
                Column::jobs(plain.iter().map(|entry| entry.id)),
                Column::Json(plain.iter().map(|entry| Some(entry.payload())).collect()),
            ];
            columns.extend(counter_columns);
            let params = [
                Param::Int(first.tenant.0),
                Param::Int(first.lane),
                Param::Text(first.state.as_str()),
                Param::Time(first.run_at),
                Param::time(first.due_at()),
                Param::Int(i64::from(first.job.max_attempts)),
                Param::Text(&first.job.principal),
                now,
            ];
            tx.defer(&INSERT_ALIKE, &columns, &params).await?;
        }
        Some(_) => {
            let mut columns = plain_columns(&plain);
            columns.extend(counter_columns);
            tx.defer(&INSERT_PLAIN, &columns, &[now]).await?;
        }
    }
    if !with_counters {
        counters.write(tx).await?;
    }
    if full.is_empty() {
        return Ok(());
    }
    let extras: Vec<&Extras> = full.iter().filter_map(|entry| entry.job.extras.as_deref()).collect();
    let stored: Vec<Stored> = extras.iter().map(|extras| Stored::of(extras)).collect();
    let until = |extras: &&Extras| extras.unique.as_ref().and_then(|unique| unique.for_s).map(|s| tx.now().plus_s(s));
    let mut columns = plain_columns(&full);
    columns.extend([
        Column::Text(extras.iter().map(|e| e.subject.as_ref().map(Label::as_str)).collect()),
        Column::Text(extras.iter().map(|e| e.process.as_ref().map(Name::as_str)).collect()),
        Column::Text(extras.iter().map(|e| e.run.as_ref().map(Label::as_str)).collect()),
        Column::Text(extras.iter().map(|e| e.unique.as_ref().map(|unique| unique.key.as_str())).collect()),
        Column::Time(extras.iter().map(until).collect()),
        Column::Text(extras.iter().map(|e| e.concurrency_key.as_ref().map(Label::as_str)).collect()),
        Column::Json(stored.iter().map(|s| s.retry.as_deref()).collect()),
        Column::Int(extras.iter().map(|e| e.timeout_s).collect()),
        Column::Json(stored.iter().map(|s| s.tags.as_deref()).collect()),
        Column::Json(extras.iter().map(|e| e.webhook.as_deref()).collect()),
        Column::Uuid(extras.iter().map(|e| e.parent.map(JobId::uuid)).collect()),
        Column::Text(extras.iter().map(|e| e.triggered_by.as_deref()).collect()),
        Column::ints(extras.iter().map(|e| i64::from(e.depth))),
        Column::ints(extras.iter().map(|e| i64::from(e.has_inputs || e.traceparent.is_some()))),
    ]);
    tx.defer(&INSERT_FULL, &columns, &[now]).await
}

impl PendingJob<'_> {
    /// The time until which the job is scheduled, if it is.
    fn due_at(&self) -> Option<Time> {
        match self.state {
            JobState::Waiting => Some(Time::NEVER),
            JobState::Scheduled => Some(self.run_at),
            _ => None,
        }
    }

    /// Returns true if two jobs without extras differ in id and payload only.
    fn is_like(&self, other: &Self) -> bool {
        let shared_values =
            |entry: &Self| (entry.tenant, entry.lane, entry.state, entry.run_at, entry.job.max_attempts);
        shared_values(self) == shared_values(other) && self.job.principal == other.job.principal
    }
}

struct Stored {
    retry: Option<String>,
    tags: Option<String>,
}

impl Stored {
    fn of(extras: &Extras) -> Self {
        let tags: Vec<&str> = extras.tags.iter().map(Label::as_str).collect();
        Self { retry: extras.retry.map(retry_to_json), tags: (!tags.is_empty()).then(|| to_json(&tags)) }
    }
}

fn plain_columns<'a>(entries: &[&'a PendingJob<'a>]) -> Vec<Column<'a>> {
    let of = || entries.iter();
    vec![
        Column::jobs(of().map(|entry| entry.id)),
        Column::ints(of().map(|entry| entry.tenant.0)),
        Column::ints(of().map(|entry| entry.lane)),
        Column::texts(of().map(|entry| entry.state.as_str())),
        Column::Time(of().map(|entry| Some(entry.run_at)).collect()),
        Column::Time(of().map(|entry| entry.due_at()).collect()),
        Column::ints(of().map(|entry| i64::from(entry.job.max_attempts))),
        Column::Json(of().map(|entry| Some(entry.payload())).collect()),
        Column::texts(of().map(|entry| &*entry.job.principal)),
    ]
}

const INSERT_TAGS: Sql = Sql::new(
    &["insert into job_tags (tenant, tag, job) values ($1, $2, $3) on conflict do nothing"],
    "insert into job_tags (tenant, tag, job) select * from unnest($1::bigint[], $2::text[], $3::uuid[])
     on conflict do nothing",
);

pub(super) async fn tags(tx: &mut Tx<'_>, entries: &[&PendingJob<'_>]) -> Result<(), StoreError> {
    let tagged: Vec<(&PendingJob<'_>, &Label)> = entries
        .iter()
        .filter_map(|entry| entry.job.extras.as_deref().map(|extras| (*entry, extras)))
        .flat_map(|(entry, extras)| extras.tags.iter().map(move |tag| (entry, tag)))
        .collect();
    let columns = [
        Column::ints(tagged.iter().map(|(entry, _)| entry.tenant.0)),
        Column::texts(tagged.iter().map(|(_, tag)| tag.as_str())),
        Column::jobs(tagged.iter().map(|(entry, _)| entry.id)),
    ];
    tx.defer(&INSERT_TAGS, &columns, &[]).await
}

const INSERT_OPTIONS: Sql = Sql::new(
    &[
        "insert into job_options (job, tenant, deadline_s, due_at, traceparent, gathered) values ($1, $2, $3, $4, $5, $6)",
    ],
    "insert into job_options (job, tenant, deadline_s, due_at, traceparent, gathered)
     select n.* from unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::timestamptz[], $5::text[], $6::bigint[]) n",
);

/// Inserts the options that most jobs do not have.
pub(super) async fn options(tx: &mut Tx<'_>, entries: &[&PendingJob<'_>]) -> Result<(), StoreError> {
    let has_options =
        |extras: &&Extras| extras.deadline_s.is_some() || extras.traceparent.is_some() || extras.gather.is_some();
    let with_options: Vec<(&PendingJob<'_>, &Extras)> =
        entries.iter().filter_map(|entry| Some((*entry, entry.job.extras.as_deref().filter(has_options)?))).collect();
    let now = tx.now();
    let columns = [
        Column::jobs(with_options.iter().map(|(entry, _)| entry.id)),
        Column::ints(with_options.iter().map(|(entry, _)| entry.tenant.0)),
        Column::Int(with_options.iter().map(|(_, extras)| extras.deadline_s).collect()),
        Column::Time(with_options.iter().map(|(_, extras)| extras.deadline_s.map(|s| now.plus_s(s))).collect()),
        Column::Text(with_options.iter().map(|(_, e)| e.traceparent.as_ref().map(TraceContext::as_str)).collect()),
        Column::Int(with_options.iter().map(|(entry, e)| e.gather.map(|_| entry.payloads)).collect()),
    ];
    tx.defer(&INSERT_OPTIONS, &columns, &[]).await
}
