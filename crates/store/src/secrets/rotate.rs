//! A new master key, and what to do when the old one is lost.

use std::sync::Arc;

use domain::TenantId;
use uuid::Uuid;

use super::key_file::KeyFile;
use super::{LOCK, insert, not_ours, wrapped_for};
use crate::error::StoreError;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

impl Store {
    /// Puts a new master key into the file, wraps every tenant's keys with it, gives every tenant a new key for what is
    /// sealed from now on, and takes the old master key out of the file. Others may go on working beside it.
    /// Gives how many keys were wrapped anew.
    pub async fn rotate_secret_keys(&self) -> Result<usize, StoreError> {
        // The wrong file is told before it is touched.
        self.tenant_key(TenantId::DEFAULT).await?;
        let file = self.secret_keys().file.clone();
        // Both keys are in the file while the wraps change: whoever reads either finds its key.
        file.add()?;
        let wrapped = self.write(Rewrap { file: file.clone() }).await?;
        file.forget_old()?;
        self.forget_secret_keys();
        Ok(wrapped)
    }

    /// Gives up every secret that was sealed: for who has lost the key file. They must be set anew.
    pub async fn reset_secret_keys(&self) -> Result<u64, StoreError> {
        let forgotten = self.write(Reset).await?;
        self.forget_secret_keys();
        Ok(forgotten)
    }

    fn forget_secret_keys(&self) {
        *self.secret_keys().opened.write().expect("no writer panics") = super::Opened::default();
    }
}

struct Rewrap {
    file: Arc<KeyFile>,
}

const ALL: Sql = Sql::both(&["select id, tenant, wrapped from secret_keys order by id"]);
const UPDATE: Sql = Sql::both(&["update secret_keys set wrapped = $2 where id = $1"]);
const DELETE: Sql = Sql::both(&["delete from secret_keys"]);

impl Operation for Rewrap {
    type Output = usize;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<usize, StoreError> {
        // Whoever makes a key waits, and then finds the new master key in the file.
        tx.lock(&[LOCK]).await?;
        let master = self.file.keys_or_make()?;
        let rows = tx.query(&ALL, &[]).await?;
        let mut tenants: Vec<TenantId> = Vec::new();
        for row in &rows {
            let (id, tenant): (Uuid, _) = (row.uuid(0)?, TenantId(row.int(1)?));
            let bound_to = wrapped_for(tenant, id);
            let secret = master.unwrap(&bound_to, &row.text(2)?).ok_or_else(|| not_ours(&self.file))?;
            let wrapped = master.wrap(&bound_to, &secret);
            tx.execute(&UPDATE, &[Param::Uuid(id), Param::Text(&wrapped)]).await?;
            tenants.push(tenant);
        }
        tenants.sort_unstable();
        tenants.dedup();
        for tenant in tenants {
            insert(tx, &master, tenant).await?;
        }
        Ok(rows.len())
    }
}

struct Reset;

impl Operation for Reset {
    type Output = u64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<u64, StoreError> {
        tx.lock(&[LOCK]).await?;
        tx.execute(&DELETE, &[]).await
    }
}
