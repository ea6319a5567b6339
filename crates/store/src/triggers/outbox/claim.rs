//! Claims due outbox rows under a lease. Rows of a dispatcher that crashed become due again when the lease expires.

use domain::limits::{DISPATCH_LEASE_MS, DISPATCH_ROWS};
use domain::{EventId, TenantId, TriggerId};
use uuid::Uuid;

use crate::db::clock::new_uuid;
use crate::db::tx::{Operation, Param, Row, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;
use crate::triggers::Mode;
use crate::triggers::dead_letters::attempts_from_json;
use crate::triggers::outbox::OutboxRow;

/// Claimed rows and the lease under which they can be closed.
#[derive(Clone, Debug)]
pub struct OutboxBatch {
    pub lease: Uuid,
    pub rows: Vec<OutboxRow>,
}

impl Store {
    /// Claims up to `DISPATCH_ROWS` due rows.
    pub async fn claim_outbox(&self) -> Result<OutboxBatch, StoreError> {
        // Most polls find nothing. Check in a read transaction first, so that they cost no commit.
        if !self.read(HasDueRows).await? {
            return Ok(OutboxBatch { lease: Uuid::nil(), rows: Vec::new() });
        }
        self.write(ClaimOutboxRows).await
    }
}

struct HasDueRows;

const ANY: Sql = Sql::both(&["select 1 from outbox where due_at <= $1 order by due_at limit 1"]);

impl Operation for HasDueRows {
    type Output = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        let now = Param::Time(tx.now());
        Ok(tx.query_opt(&ANY, &[now]).await?.is_some())
    }
}

struct ClaimOutboxRows;

const TAKE: Sql = Sql::new(
    &["update outbox set lease = $3, due_at = $4
       where id in (select id from outbox where due_at <= $1 order by due_at, id limit $2)
       returning id, tenant, trigger_id, event_id, source, op, depth, event, data, wait_s, attempts"],
    "with due as materialized (
         select id from outbox where due_at <= $1 order by due_at, id limit $2 for update skip locked)
     update outbox o set lease = $3, due_at = $4 from due where o.id = due.id
     returning o.id, o.tenant, o.trigger_id, o.event_id, o.source, o.op, o.depth, o.event, o.data, o.wait_s, o.attempts",
);

impl Operation for ClaimOutboxRows {
    type Output = OutboxBatch;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<OutboxBatch, StoreError> {
        let now = tx.now();
        let lease = new_uuid(now);
        let params = [
            Param::Time(now),
            Param::Int(DISPATCH_ROWS as i64),
            Param::Uuid(lease),
            Param::Time(now.plus_ms(DISPATCH_LEASE_MS)),
        ];
        let rows = tx.query(&TAKE, &params).await?;
        let mut rows = rows.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        rows.sort_by_key(|row| row.id);
        Ok(OutboxBatch { lease, rows })
    }
}

fn read(row: &Row) -> Result<OutboxRow, StoreError> {
    Ok(OutboxRow {
        id: row.uuid("id")?,
        tenant: TenantId(row.int("tenant")?),
        trigger: TriggerId::new(row.uuid("trigger_id")?),
        event: EventId::new(row.uuid("event_id")?),
        source: row.text("source")?,
        op: row.text("op")?,
        depth: row.int("depth")? as i32,
        head: row.text("event")?,
        data: row.text("data")?,
        wait_s: row.opt_int("wait_s")?.map(|wait| wait as u64),
        attempts: attempts_from_json(&row.text("attempts")?)?,
        mode: Mode::Async,
    })
}
