//! Repairs what was missed: a job parked for a scope that has room again looks once more.

use crate::error::StoreError;
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

// Nobody holds the scope at all: whoever let it go should have woken one of those that waited.
const FORGOTTEN: Sql = Sql::both(&["update jobs set parked = null where id in (
         select j.id from jobs j where j.parked is not null
             and not exists (select 1 from holds h where h.tenant = j.tenant and h.scope = j.parked)
             and not exists (select 1 from backoffs b where b.tenant = j.tenant and b.subject = j.subject
                 and j.parked = 'backoff ' || b.process || ' ' || b.subject)
         limit 1000)"]);

impl Operation for Unpark {
    type Output = u64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<u64, StoreError> {
        tx.execute(&FORGOTTEN, &[]).await
    }
}
