//! Stores the changed journals and entries of a commit. `write` calls it.

use std::collections::HashMap;

use domain::{JobId, Label};

use super::open_journal::{KeptEvent, OpenEntry, OpenJournal};
use super::write::LockedJob;
use crate::db::codec::error_to_json;
use crate::db::tx::{Column, Param, Sql, Tx};
use crate::error::StoreError;

const INSERT: Sql = Sql::new(
    &["insert or fail into journal_entries (job, position, tenant, key, op, seq, epoch, hash, attempt, attempts, result,
           error, bytes, duration_ms, resolved_at, input, due_at, pending, created_at)
       values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)"],
    "insert into journal_entries (job, position, tenant, key, op, seq, epoch, hash, attempt, attempts, result, error,
         bytes, duration_ms, resolved_at, input, due_at, pending, created_at)
     select n.*, $19 from unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::bigint[],
         $7::bigint[], $8::text[], $9::bigint[], $10::json[], $11::json[], $12::json[], $13::bigint[], $14::bigint[],
         $15::timestamptz[], $16::json[], $17::timestamptz[], $18::bigint[]) n",
);
const UPDATE: Sql = Sql::new(
    &["update journal_entries set seq = $3, hash = $4, attempt = $5, attempts = $6, result = $7, error = $8, bytes = $9,
           duration_ms = $10, resolved_at = $11
       where job = $1 and position = $2"],
    "update journal_entries e set seq = n.seq, hash = n.hash, attempt = n.attempt, attempts = n.attempts,
         result = n.result, error = n.error, bytes = n.bytes, duration_ms = n.duration_ms, resolved_at = n.resolved_at
     from unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::text[], $5::bigint[], $6::json[], $7::json[], $8::json[],
         $9::bigint[], $10::bigint[], $11::timestamptz[])
         as n(job, position, seq, hash, attempt, attempts, result, error, bytes, duration_ms, resolved_at)
     where e.job = n.job and e.position = n.position",
);
const PUT_HEAD: Sql = Sql::new(
    &["insert into journals (job, tenant, entries, resolved, bytes, drift) values ($1, $2, $3, $4, $5, $6)
       on conflict (job) do update set entries = excluded.entries, resolved = excluded.resolved, bytes = excluded.bytes,
           drift = excluded.drift"],
    "insert into journals (job, tenant, entries, resolved, bytes, drift)
     select n.* from unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[]) n
     on conflict (job) do update set entries = excluded.entries, resolved = excluded.resolved, bytes = excluded.bytes,
         drift = excluded.drift",
);
pub(super) const MARK: Sql = Sql::new(
    &["update jobs set has_journal = 1 where id = $1"],
    "update jobs set has_journal = true where id = any($1::uuid[])",
);
const CONSUME: Sql = Sql::new(
    &["update job_events set consumed_by = $3 where job = $1 and number = $2"],
    "update job_events v set consumed_by = n.key from unnest($1::uuid[], $2::bigint[], $3::text[]) as n(job, number, key)
     where v.job = n.job and v.number = n.number",
);

/// Writes the changed journals and entries.
pub(super) async fn save(
    tx: &mut Tx<'_>,
    locked: &HashMap<JobId, LockedJob>,
    journals: &HashMap<JobId, OpenJournal>,
) -> Result<(), StoreError> {
    let mut changed: Vec<(JobId, &OpenJournal)> =
        journals.iter().filter(|(_, journal)| journal.is_changed).map(|(job, journal)| (*job, journal)).collect();
    changed.sort_by_key(|(job, _)| *job);
    let mut entries: Vec<(JobId, &OpenEntry)> = changed
        .iter()
        .flat_map(|(job, journal)| journal.entries.values().map(move |open| (*job, open)))
        .filter(|(_, open)| open.is_changed)
        .collect();
    entries.sort_by_key(|(job, open)| (*job, open.entry.position));
    let (updated, inserted): (Vec<_>, Vec<_>) = entries.into_iter().partition(|(_, open)| open.is_stored);
    insert(tx, locked, &inserted).await?;
    update(tx, &updated).await?;
    let head = || changed.iter().map(|(_, journal)| &journal.head);
    let columns = [
        Column::jobs(changed.iter().map(|(job, _)| *job)),
        Column::ints(changed.iter().map(|(job, _)| locked[job].tenant.0)),
        Column::ints(head().map(|head| head.size.entries)),
        Column::ints(head().map(|head| head.resolved)),
        Column::ints(head().map(|head| head.size.bytes)),
        Column::Text(head().map(|head| head.drift.as_deref()).collect()),
    ];
    tx.defer(&PUT_HEAD, &columns, &[]).await?;
    let of_job = |(job, journal): &(JobId, &OpenJournal)| {
        let consumed = |kept: &KeptEvent| Some((kept.number, kept.consumed_by.clone()?));
        journal.mailbox.iter().filter_map(consumed).map(|(number, key)| (*job, number, key)).collect::<Vec<_>>()
    };
    let consumed: Vec<(JobId, i64, Label)> = changed.iter().flat_map(of_job).collect();
    let columns = [
        Column::jobs(consumed.iter().map(|(job, ..)| *job)),
        Column::ints(consumed.iter().map(|(_, number, _)| *number)),
        Column::texts(consumed.iter().map(|(.., key)| key.as_str())),
    ];
    tx.defer(&CONSUME, &columns, &[]).await?;
    let first = changed.iter().map(|(job, _)| *job).filter(|job| !locked[job].has_journal);
    tx.defer(&MARK, &[Column::jobs(first)], &[]).await
}

async fn insert(
    tx: &mut Tx<'_>,
    locked: &HashMap<JobId, LockedJob>,
    entries: &[(JobId, &OpenEntry)],
) -> Result<(), StoreError> {
    let of = || entries.iter().map(|(_, open)| &open.entry);
    let (attempts, errors) = (attempts_of(entries), errors_of(entries));
    let columns = [
        Column::jobs(entries.iter().map(|(job, _)| *job)),
        Column::ints(of().map(|entry| entry.position)),
        Column::ints(entries.iter().map(|(job, _)| locked[job].tenant.0)),
        Column::texts(of().map(|entry| entry.key.as_str())),
        Column::texts(of().map(|entry| entry.op.as_str())),
        Column::Int(of().map(|entry| entry.seq).collect()),
        Column::ints(entries.iter().map(|(_, open)| open.epoch.0)),
        Column::Text(of().map(|entry| entry.hash.as_deref()).collect()),
        Column::ints(of().map(|entry| entry.attempt)),
        Column::Json(attempts.iter().map(Option::as_deref).collect()),
        Column::Json(of().map(|entry| entry.result.as_deref()).collect()),
        Column::Json(errors.iter().map(Option::as_deref).collect()),
        Column::ints(of().map(|entry| entry.bytes)),
        Column::Int(of().map(|entry| entry.duration_ms).collect()),
        Column::Time(of().map(|entry| entry.resolved_at).collect()),
        Column::Json(of().map(|entry| entry.input.as_deref()).collect()),
        Column::Time(of().map(|entry| entry.due_at).collect()),
        Column::Int(entries.iter().map(|(_, open)| open.pending).collect()),
    ];
    let now = Param::Time(tx.now());
    tx.defer(&INSERT, &columns, &[now]).await
}

async fn update(tx: &mut Tx<'_>, entries: &[(JobId, &OpenEntry)]) -> Result<(), StoreError> {
    let of = || entries.iter().map(|(_, open)| &open.entry);
    let (attempts, errors) = (attempts_of(entries), errors_of(entries));
    let columns = [
        Column::jobs(entries.iter().map(|(job, _)| *job)),
        Column::ints(of().map(|entry| entry.position)),
        Column::Int(of().map(|entry| entry.seq).collect()),
        Column::Text(of().map(|entry| entry.hash.as_deref()).collect()),
        Column::ints(of().map(|entry| entry.attempt)),
        Column::Json(attempts.iter().map(Option::as_deref).collect()),
        Column::Json(of().map(|entry| entry.result.as_deref()).collect()),
        Column::Json(errors.iter().map(Option::as_deref).collect()),
        Column::ints(of().map(|entry| entry.bytes)),
        Column::Int(of().map(|entry| entry.duration_ms).collect()),
        Column::Time(of().map(|entry| entry.resolved_at).collect()),
    ];
    tx.defer(&UPDATE, &columns, &[]).await
}

fn attempts_of(entries: &[(JobId, &OpenEntry)]) -> Vec<Option<String>> {
    entries.iter().map(|(_, open)| open.entry.attempts_json()).collect()
}

fn errors_of(entries: &[(JobId, &OpenEntry)]) -> Vec<Option<String>> {
    entries.iter().map(|(_, open)| open.entry.error.as_ref().map(error_to_json)).collect()
}
