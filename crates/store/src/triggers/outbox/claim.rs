//! Claims due outbox rows under a lease. Rows of a dispatcher that crashed become due again when the lease expires.
//!
//! A claim takes the oldest rows of each tenant, an equal share of rows and of bytes, so that a tenant with many or large
//! events does not delay the others.

use std::collections::HashMap;

use domain::limits::{DISPATCH_BYTES, DISPATCH_LEASE_MS, DISPATCH_ROWS, DISPATCH_TENANTS};
use domain::{EventId, TenantId, TriggerId};
use uuid::Uuid;

use crate::db::clock::new_uuid;
use crate::db::tx::{Column, Operation, Param, Row, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;
use crate::triggers::Mode;
use crate::triggers::dead_letters::attempts_from_json;
use crate::triggers::events::ExpandFanOut;
use crate::triggers::outbox::OutboxRow;

/// Claimed rows and the lease under which they can be closed.
#[derive(Clone, Debug)]
pub struct OutboxBatch {
    pub lease: Uuid,
    pub rows: Vec<OutboxRow>,
    /// The claim stopped at a limit, so more rows may be due.
    pub may_have_more: bool,
}

impl Store {
    /// Claims up to `DISPATCH_ROWS` due rows. Writes the next part of the rows of a fan-out first.
    pub async fn claim_outbox(&self) -> Result<OutboxBatch, StoreError> {
        // Most polls find nothing. Check in a read transaction first, so that they cost no commit.
        let found = self.read(FindWork).await?;
        let mut batch = OutboxBatch { lease: Uuid::nil(), rows: Vec::new(), may_have_more: false };
        let has_written = found.has_fan_outs && self.write(ExpandFanOut).await?;
        if found.has_due_rows || has_written {
            batch = self.write(ClaimOutboxRows).await?;
        }
        batch.may_have_more |= has_written;
        Ok(batch)
    }
}

struct FindWork;

struct FoundWork {
    has_due_rows: bool,
    has_fan_outs: bool,
}

const ANY: Sql = Sql::both(&["select 1 from outbox where due_at <= $1 order by due_at limit 1"]);
const ANY_FAN_OUT: Sql = Sql::both(&["select 1 from outbox_fan_outs limit 1"]);

impl Operation for FindWork {
    type Output = FoundWork;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<FoundWork, StoreError> {
        let now = Param::Time(tx.now());
        Ok(FoundWork {
            has_due_rows: tx.query_opt(&ANY, &[now]).await?.is_some(),
            has_fan_outs: tx.query_opt(&ANY_FAN_OUT, &[]).await?.is_some(),
        })
    }
}

struct ClaimOutboxRows;

// A loose index scan that skips from one tenant to the next.
const TENANTS: Sql = Sql::both(&["with recursive owed (tenant) as (
         select tenant from (select tenant from outbox order by tenant limit 1) low
         union all
         select (select o.tenant from outbox o where o.tenant > owed.tenant order by o.tenant limit 1)
         from owed where owed.tenant is not null)
     select tenant from (
         select owed.tenant, (select o.due_at from outbox o where o.tenant = owed.tenant order by o.due_at, o.id limit 1)
             as oldest
         from owed where owed.tenant is not null) heads
     where oldest <= $1 order by oldest limit $2"]);
const DUE: Sql = Sql::new(
    &["select id, tenant, data_bytes from outbox where tenant = $1 and due_at <= $2 order by due_at, id limit $3"],
    "select d.id, n.tenant, d.data_bytes from unnest($1::bigint[]) with ordinality as n(tenant, place)
     cross join lateral (select o.id, o.due_at, o.data_bytes from outbox o where o.tenant = n.tenant and o.due_at <= $2
         order by o.due_at, o.id limit $3 for update skip locked) d
     order by n.place, d.due_at, d.id",
);
const TAKE: Sql = Sql::new(
    &["update outbox set lease = $2, due_at = $3 where id = $1
       returning id, tenant, trigger_id, event_id, source, op, depth, event, data, is_shared, wait_s, attempts"],
    "update outbox o set lease = $2, due_at = $3 where o.id = any($1::uuid[])
     returning o.id, o.tenant, o.trigger_id, o.event_id, o.source, o.op, o.depth, o.event, o.data, o.is_shared, o.wait_s,
         o.attempts",
);
const SHARED: Sql = Sql::new(
    &["select id, data from outbox_events where id = $1"],
    "select id, data from outbox_events where id = any($1::uuid[])",
);

impl Operation for ClaimOutboxRows {
    type Output = OutboxBatch;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<OutboxBatch, StoreError> {
        let now = tx.now();
        let tenants = tx.query(&TENANTS, &[Param::Time(now), Param::Int(DISPATCH_TENANTS as i64)]).await?;
        let tenants = tenants.iter().map(|row| row.int("tenant")).collect::<Result<Vec<_>, _>>()?;
        let share = Share::of(tenants.len());
        let limit = [Param::Time(now), Param::Int(share.rows as i64)];
        let due = tx.query_each(&DUE, &[Column::ints(tenants)], &limit).await?;
        let (ids, may_have_more) = share.choose(&due)?;
        let lease = new_uuid(now);
        let leased = [Param::Uuid(lease), Param::Time(now.plus_ms(DISPATCH_LEASE_MS))];
        let rows = tx.query_each(&TAKE, &[Column::uuids(ids)], &leased).await?;
        let mut rows = rows.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        rows.sort_by_key(|(row, _)| row.id);
        let mut of: Vec<Uuid> = rows.iter().filter(|(_, shared)| *shared).map(|(row, _)| row.event.uuid()).collect();
        of.sort_unstable();
        of.dedup();
        let mut data: HashMap<Uuid, String> = HashMap::new();
        for row in tx.query_each(&SHARED, &[Column::uuids(of)], &[]).await? {
            data.insert(row.uuid("id")?, row.text("data")?);
        }
        let missing = || StoreError::unexpected("the event of a run is missing");
        let mut claimed = Vec::with_capacity(rows.len());
        for (mut row, is_shared) in rows {
            if is_shared {
                row.data.clone_from(data.get(&row.event.uuid()).ok_or_else(missing)?);
            }
            claimed.push(row);
        }
        Ok(OutboxBatch { lease, rows: claimed, may_have_more })
    }
}

/// What one tenant may take from a claim.
struct Share {
    rows: usize,
    bytes: usize,
}

impl Share {
    fn of(tenants: usize) -> Self {
        let tenants = tenants.max(1);
        Self { rows: (DISPATCH_ROWS / tenants).max(1), bytes: DISPATCH_BYTES / tenants }
    }

    /// Returns the rows to take, at least one of each tenant, and whether rows are left.
    fn choose(&self, due: &[Row]) -> Result<(Vec<Uuid>, bool), StoreError> {
        let mut taken: HashMap<i64, (usize, usize)> = HashMap::new();
        let (mut ids, mut has_rest) = (Vec::new(), false);
        for row in due {
            let bytes = row.opt_int("data_bytes")?.unwrap_or(0) as usize;
            let (rows, total) = taken.entry(row.int("tenant")?).or_default();
            *total += bytes;
            if *rows > 0 && *total > self.bytes {
                has_rest = true;
                continue;
            }
            *rows += 1;
            has_rest |= *rows == self.rows;
            ids.push(row.uuid("id")?);
        }
        Ok((ids, has_rest))
    }
}

/// Reads a row, and whether its data is in `outbox_events`.
fn read(row: &Row) -> Result<(OutboxRow, bool), StoreError> {
    let read = OutboxRow {
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
    };
    Ok((read, row.bool("is_shared")?))
}
