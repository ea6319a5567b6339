//! Rotates the master key, and resets all sealed secrets when the master key is lost.

use std::sync::Arc;

use domain::TenantId;
use uuid::Uuid;

use super::key_file::KeyFile;
use super::{LOCK, insert, missing_key, wrapped_for};
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

impl Store {
    /// Rotates the master key: adds a new one to the file, rewraps every tenant key with it, creates a new key per tenant
    /// for future secrets, and removes the old master key from the file. Servers can keep running meanwhile.
    ///
    /// Returns the number of rewrapped keys.
    pub async fn rotate_secret_keys(&self) -> Result<usize, StoreError> {
        // Fails on a wrong key file before the file is modified.
        self.tenant_key(TenantId::DEFAULT).await?;
        let file = self.secret_keys().file.clone();
        // The file holds both master keys during the rewrap, so concurrent readers can unwrap old and new rows.
        file.add()?;
        let wrapped = self.write(RewrapKeys { file: file.clone() }).await?;
        file.remove_old_keys()?;
        self.clear_key_cache();
        Ok(wrapped)
    }

    /// Deletes all tenant keys after the key file was lost. Every sealed secret becomes unreadable and must be set again.
    /// Returns the number of deleted keys.
    pub async fn reset_secret_keys(&self) -> Result<u64, StoreError> {
        let deleted = self.write(ResetKeys).await?;
        self.clear_key_cache();
        Ok(deleted)
    }

    fn clear_key_cache(&self) {
        *self.secret_keys().opened.write().expect("lock poisoned") = super::OpenedKeys::default();
    }
}

struct RewrapKeys {
    file: Arc<KeyFile>,
}

const ALL: Sql = Sql::both(&["select id, tenant, wrapped from secret_keys order by id"]);
const UPDATE: Sql = Sql::both(&["update secret_keys set wrapped = $2 where id = $1"]);
const DELETE: Sql = Sql::both(&["delete from secret_keys"]);

impl Operation for RewrapKeys {
    type Output = usize;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<usize, StoreError> {
        // A concurrent key creation waits for this lock and then uses the new master key.
        tx.lock(&[LOCK]).await?;
        let master = self.file.keys_or_create()?;
        let rows = tx.query(&ALL, &[]).await?;
        let mut tenants: Vec<TenantId> = Vec::new();
        for row in &rows {
            let (id, tenant): (Uuid, _) = (row.uuid("id")?, TenantId(row.int("tenant")?));
            let bound_to = wrapped_for(tenant, id);
            let secret = master.unwrap(&bound_to, &row.text("wrapped")?).ok_or_else(|| missing_key(&self.file))?;
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

struct ResetKeys;

impl Operation for ResetKeys {
    type Output = u64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<u64, StoreError> {
        tx.lock(&[LOCK]).await?;
        tx.execute(&DELETE, &[]).await
    }
}
