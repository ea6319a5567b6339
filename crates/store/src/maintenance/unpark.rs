//! Repairs what was missed: a job parked for a scope that has room again looks once more.

use domain::TenantId;

use crate::error::StoreError;
use crate::jobs::holds;
use crate::store::Store;
use crate::tx::{Operation, Sql, Tx};

impl Store {
    /// Gives how many jobs had been forgotten.
    pub async fn unpark_forgotten(&self) -> Result<u64, StoreError> {
        let unparked = self.write(Unpark).await?;
        if unparked > 0 {
            self.floors().drop_all();
        }
        Ok(unparked)
    }
}

struct Unpark;

// Nobody holds the scope at all: whoever let it go should have woken one of those that waited. From one scope to the next: a
// million jobs that wait for one key are one step. Those that wait out a backoff have one subject, so the first tells.
// (Without the `|| ''` SQLite seeks by the tenant alone.)
const FORGOTTEN: Sql = Sql::both(&["update jobs set parked = null where id in (
         with recursive scopes (tenant, scope) as (
             select (select tenant from jobs where parked is not null order by tenant, parked limit 1),
                 (select parked from jobs where parked is not null order by tenant, parked limit 1)
             union all
             select (select j.tenant from jobs j where j.parked is not null and (j.tenant, j.parked) > (s.tenant, s.scope || '')
                     order by j.tenant, j.parked limit 1),
                 (select j.parked from jobs j where j.parked is not null and (j.tenant, j.parked) > (s.tenant, s.scope || '')
                     order by j.tenant, j.parked limit 1)
             from scopes s where s.scope is not null)
         select j.id from scopes s join jobs j on j.tenant = s.tenant and j.parked = s.scope
         where not exists (select 1 from holds h where h.tenant = s.tenant and h.scope = s.scope)
             and not exists (select 1 from backoffs b where b.tenant = s.tenant
                 and b.subject = (select f.subject from jobs f where f.tenant = s.tenant and f.parked = s.scope
                     order by f.run_at, f.id limit 1)
                 and s.scope = 'backoff ' || b.process || ' ' || b.subject)
         limit 1000)"]);

// Keys of which several may run at once and fewer do. Who was woken for the place may not have taken it: it was called off
// since, or its subject is another's.
const WITH_ROOM: Sql = Sql::both(&["select q.tenant, h.scope, q.per_key - count(*)
     from queues q join holds h on h.tenant = q.tenant
         and h.scope >= 'key ' || q.name || ' ' and h.scope < 'key ' || q.name || '!'
     where q.per_key > 1
     group by q.tenant, h.scope, q.per_key having count(*) < q.per_key limit 1000"]);

impl Operation for Unpark {
    type Output = u64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<u64, StoreError> {
        let mut unparked = tx.execute(&FORGOTTEN, &[]).await?;
        for row in tx.query(&WITH_ROOM, &[]).await? {
            let lanes = holds::unpark(tx, TenantId(row.int(0)?), &row.text(1)?, row.int(2)?).await?;
            unparked += lanes.len() as u64;
        }
        Ok(unparked)
    }
}
