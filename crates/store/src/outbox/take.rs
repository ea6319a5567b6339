//! Takes due rows for a while. Those of a dispatcher that died come back by themselves (T3).

use domain::limits::{DISPATCH_LEASE_MS, DISPATCH_ROWS};
use domain::{EventId, TenantId, TriggerId};
use uuid::Uuid;

use crate::clock::new_uuid;
use crate::dead_letters::attempts_from_json;
use crate::error::StoreError;
use crate::outbox::Taken;
use crate::store::Store;
use crate::triggers::Mode;
use crate::tx::{Operation, Param, Row, Sql, Tx};

/// Rows and the word by which they may be closed.
#[derive(Clone, Debug)]
pub struct Batch {
    pub lease: Uuid,
    pub rows: Vec<Taken>,
}

impl Store {
    pub async fn take_outbox(&self) -> Result<Batch, StoreError> {
        // Most looks find nothing: they should not cost a commit.
        if !self.read(Any).await? {
            return Ok(Batch { lease: Uuid::nil(), rows: Vec::new() });
        }
        self.write(Take).await
    }
}

struct Any;

const ANY: Sql = Sql::both(&["select 1 from outbox where due_at <= $1 order by due_at limit 1"]);

impl Operation for Any {
    type Output = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        let now = Param::Time(tx.now());
        Ok(tx.query_opt(&ANY, &[now]).await?.is_some())
    }
}

struct Take;

const TAKE: Sql = Sql::new(
    &["update outbox set lease = $3, due_at = $4
       where id in (select id from outbox where due_at <= $1 order by due_at, id limit $2)
       returning id, tenant, trigger_id, event_id, source, op, depth, event, data, wait_s, attempts"],
    "with due as materialized (
         select id from outbox where due_at <= $1 order by due_at, id limit $2 for update skip locked)
     update outbox o set lease = $3, due_at = $4 from due where o.id = due.id
     returning o.id, o.tenant, o.trigger_id, o.event_id, o.source, o.op, o.depth, o.event, o.data, o.wait_s, o.attempts",
);

impl Operation for Take {
    type Output = Batch;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Batch, StoreError> {
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
        Ok(Batch { lease, rows })
    }
}

fn read(row: &Row) -> Result<Taken, StoreError> {
    Ok(Taken {
        id: row.uuid(0)?,
        tenant: TenantId(row.int(1)?),
        trigger: TriggerId::new(row.uuid(2)?),
        event: EventId::new(row.uuid(3)?),
        source: row.text(4)?,
        op: row.text(5)?,
        depth: row.int(6)? as i32,
        head: row.text(7)?,
        data: row.text(8)?,
        wait_s: row.opt_int(9)?.map(|wait| wait as u64),
        attempts: attempts_from_json(&row.text(10)?)?,
        mode: Mode::Async,
    })
}
