//! Cancels a job so that its handler can undo its steps: an entry of the journal says that the job is canceled, and the job
//! runs once more.

use domain::workflows::journal::CANCEL_KEY;
use domain::{JobId, TenantId};
use serde::Serialize;

use super::JournalHead;
use super::waits_for::to_the_second;
use crate::db::codec::to_json;
use crate::db::tx::{Param, Sql, Tx};
use crate::error::StoreError;

/// What became of a request to compensate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CancelEntry {
    Recorded,
    AlreadyRecorded,
    /// The job has no journal, so nothing is to undo.
    NoJournal,
}

/// The result of the entry.
#[derive(Serialize)]
struct CancelNote<'a> {
    by: &'a str,
    /// RFC 3339.
    at: String,
}

const HEAD: Sql = Sql::both(&["select entries, resolved, bytes, drift from journals where job = $1 and tenant = $2"]);
const RECORDED: Sql = Sql::both(&["select position from journal_entries where job = $1 and key = $2"]);
const INSERT: Sql =
    Sql::both(&["insert into journal_entries (job, position, tenant, key, op, seq, epoch, attempt, bytes, result,
         created_at, resolved_at)
     values ($1, $2, $3, $4, 'event', $5, $6, 1, $7, $8, $9, $9)"]);
// The job no longer waits for the entries of its suspend.
const PUT_HEAD: Sql = Sql::both(&["update journals set entries = $2, resolved = $3, bytes = $4, wake_keys = null,
         wake_count = null
     where job = $1"]);

/// Records the entry. The caller holds the lock of the job's row. The limits of journals do not apply to this entry.
pub(crate) async fn record_cancel(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    job: JobId,
    epoch: i64,
    by: &str,
) -> Result<CancelEntry, StoreError> {
    let Some(row) = tx.query_opt(&HEAD, &[Param::from(job), Param::Int(tenant.0)]).await? else {
        return Ok(CancelEntry::NoJournal);
    };
    let head = JournalHead::read(&row)?;
    if tx.query_opt(&RECORDED, &[Param::from(job), Param::Text(CANCEL_KEY)]).await?.is_some() {
        return Ok(CancelEntry::AlreadyRecorded);
    }
    let result = to_json(&CancelNote { by, at: to_the_second(tx.now()) });
    let bytes = (CANCEL_KEY.len() + result.len()) as i64;
    let params = [
        Param::from(job),
        Param::Int(head.size.entries + 1),
        Param::Int(tenant.0),
        Param::Text(CANCEL_KEY),
        Param::Int(head.resolved + 1),
        Param::Int(epoch),
        Param::Int(bytes),
        Param::Json(&result),
        Param::Time(tx.now()),
    ];
    tx.execute(&INSERT, &params).await?;
    let (entries, resolved) = (Param::Int(head.size.entries + 1), Param::Int(head.resolved + 1));
    tx.execute(&PUT_HEAD, &[params[0], entries, resolved, Param::Int(head.size.bytes + bytes)]).await?;
    Ok(CancelEntry::Recorded)
}
