//! Unparks jobs whose scope became free without waking them. The engine's repair task calls it.

use domain::{JobId, TenantId};

use crate::db::tx::{Column, Operation, Sql, Tx};
use crate::error::StoreError;
use crate::queue::holds;
use crate::store::Store;

impl Store {
    /// Returns the number of unparked jobs.
    pub async fn repair_parked_jobs(&self) -> Result<u64, StoreError> {
        // Read outside the write transaction: the query takes one step per awaited scope and usually finds nothing.
        let found = self.read(FindMissedWakeups).await?;
        if found.orphaned.is_empty() && found.with_capacity.is_empty() {
            return Ok(0);
        }
        let unparked = self.write(Unpark { found }).await?;
        if unparked > 0 {
            self.fast_path().watermarks().clear();
        }
        Ok(unparked)
    }
}

struct FindMissedWakeups;

struct MissedWakeups {
    /// Jobs parked for a scope that nothing holds, with the scope.
    orphaned: Vec<(JobId, String)>,
    /// Scopes below their limit, with the number of free slots.
    with_capacity: Vec<(TenantId, String, i64)>,
}

// Scopes without any holder: the transaction that released the last hold should have unparked a job. The recursive
// query steps from scope to scope, so a million jobs parked for one key cost one step. Jobs parked for one backoff
// share their subject, so reading the first job is enough. (Without the `|| ''` SQLite seeks by the tenant alone.)
const ORPHANED: Sql = Sql::both(&["with recursive scopes (tenant, scope) as (
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

// Concurrency keys with a limit above 1 and fewer holders than that. The job that was unparked for the free slot may
// not have used it: it was canceled, or its subject is held by another job.
const WITH_CAPACITY: Sql = Sql::both(&["select q.tenant, h.scope, q.per_key - count(*) as capacity
     from queues q join holds h on h.tenant = q.tenant
         and h.scope >= 'key ' || q.name || ' ' and h.scope < 'key ' || q.name || '!'
     where q.per_key > 1 and exists (select 1 from jobs j where j.tenant = q.tenant and j.parked = h.scope)
     group by q.tenant, h.scope, q.per_key having count(*) < q.per_key limit 1000"]);

impl Operation for FindMissedWakeups {
    type Output = MissedWakeups;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<MissedWakeups, StoreError> {
        let (mut orphaned, mut with_capacity) = (Vec::new(), Vec::new());
        for row in tx.query(&ORPHANED, &[]).await? {
            orphaned.push((row.job("id")?, row.text("scope")?));
        }
        for row in tx.query(&WITH_CAPACITY, &[]).await? {
            with_capacity.push((TenantId(row.int("tenant")?), row.text("scope")?, row.int("capacity")?));
        }
        Ok(MissedWakeups { orphaned, with_capacity })
    }
}

struct Unpark {
    found: MissedWakeups,
}

// If the scope was acquired since the scan, the next claim parks the job again.
const UNPARK: Sql = Sql::new(
    &["update jobs set parked = null where id = $1 and parked = $2"],
    "update jobs j set parked = null from unnest($1::uuid[], $2::text[]) as n(id, scope)
     where j.id = n.id and j.parked = n.scope",
);

impl Operation for Unpark {
    type Output = u64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<u64, StoreError> {
        let MissedWakeups { orphaned, with_capacity } = &self.found;
        let columns = [
            Column::jobs(orphaned.iter().map(|(job, _)| *job)),
            Column::texts(orphaned.iter().map(|(_, scope)| scope.as_str())),
        ];
        let mut unparked = tx.execute_each(&UNPARK, &columns, &[]).await?;
        for (tenant, scope, capacity) in with_capacity {
            unparked += holds::unpark(tx, *tenant, scope, *capacity).await?.len() as u64;
        }
        Ok(unparked)
    }
}
