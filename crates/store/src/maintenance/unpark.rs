//! Repairs what was missed: a job parked for a scope that has room again looks once more.

use domain::{JobId, TenantId};

use crate::error::StoreError;
use crate::jobs::holds;
use crate::store::Store;
use crate::tx::{Column, Operation, Sql, Tx};

impl Store {
    /// Gives how many jobs had been forgotten.
    pub async fn unpark_forgotten(&self) -> Result<u64, StoreError> {
        // Beside the writer: the look takes a step for each scope that is waited for, and mostly there is nothing.
        let found = self.read(Look).await?;
        if found.forgotten.is_empty() && found.with_room.is_empty() {
            return Ok(0);
        }
        let unparked = self.write(Unpark { found }).await?;
        if unparked > 0 {
            self.floors().drop_all();
        }
        Ok(unparked)
    }
}

struct Look;

struct Found {
    /// Jobs, and what they wait for.
    forgotten: Vec<(JobId, String)>,
    /// Scopes, and how many more may hold them.
    with_room: Vec<(TenantId, String, i64)>,
}

// Nobody holds the scope at all: whoever let it go should have woken one of those that waited. From one scope to the next: a
// million jobs that wait for one key are one step. Those that wait out a backoff have one subject, so the first tells.
// (Without the `|| ''` SQLite seeks by the tenant alone.)
const FORGOTTEN: Sql = Sql::both(&["with recursive scopes (tenant, scope) as (
         select (select tenant from jobs where parked is not null order by tenant, parked limit 1),
             (select parked from jobs where parked is not null order by tenant, parked limit 1)
         union all
         select (select j.tenant from jobs j where j.parked is not null and (j.tenant, j.parked) > (s.tenant, s.scope || '')
                 order by j.tenant, j.parked limit 1),
             (select j.parked from jobs j where j.parked is not null and (j.tenant, j.parked) > (s.tenant, s.scope || '')
                 order by j.tenant, j.parked limit 1)
         from scopes s where s.scope is not null)
     select j.id, s.scope from scopes s join jobs j on j.tenant = s.tenant and j.parked = s.scope
     where not exists (select 1 from holds h where h.tenant = s.tenant and h.scope = s.scope)
         and not exists (select 1 from backoffs b where b.tenant = s.tenant
             and b.subject = (select f.subject from jobs f where f.tenant = s.tenant and f.parked = s.scope
                 order by f.run_at, f.id limit 1)
             and s.scope = 'backoff ' || b.process || ' ' || b.subject)
     limit 1000"]);

// Keys of which several may run at once and fewer do. Who was woken for the place may not have taken it: it was called off
// since, or its subject is another's.
const WITH_ROOM: Sql = Sql::both(&["select q.tenant, h.scope, q.per_key - count(*)
     from queues q join holds h on h.tenant = q.tenant
         and h.scope >= 'key ' || q.name || ' ' and h.scope < 'key ' || q.name || '!'
     where q.per_key > 1 and exists (select 1 from jobs j where j.tenant = q.tenant and j.parked = h.scope)
     group by q.tenant, h.scope, q.per_key having count(*) < q.per_key limit 1000"]);

impl Operation for Look {
    type Output = Found;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Found, StoreError> {
        let (mut forgotten, mut with_room) = (Vec::new(), Vec::new());
        for row in tx.query(&FORGOTTEN, &[]).await? {
            forgotten.push((row.job(0)?, row.text(1)?));
        }
        for row in tx.query(&WITH_ROOM, &[]).await? {
            with_room.push((TenantId(row.int(0)?), row.text(1)?, row.int(2)?));
        }
        Ok(Found { forgotten, with_room })
    }
}

struct Unpark {
    found: Found,
}

// One whose scope was taken since the look finds that out and waits again.
const UNPARK: Sql = Sql::new(
    &["update jobs set parked = null where id = $1 and parked = $2"],
    "update jobs j set parked = null from unnest($1::uuid[], $2::text[]) as n(id, scope)
     where j.id = n.id and j.parked = n.scope",
);

impl Operation for Unpark {
    type Output = u64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<u64, StoreError> {
        let Found { forgotten, with_room } = &self.found;
        let columns = [
            Column::jobs(forgotten.iter().map(|(job, _)| *job)),
            Column::texts(forgotten.iter().map(|(_, scope)| scope.as_str())),
        ];
        let mut unparked = tx.execute_each(&UNPARK, &columns, &[]).await?;
        for (tenant, scope, room) in with_room {
            unparked += holds::unpark(tx, *tenant, scope, *room).await?.len() as u64;
        }
        Ok(unparked)
    }
}
