//! Secrets at rest: webhook secrets and the like are sealed before they reach the database, with a key that is not in it.
//!
//! An envelope: every tenant has a key of its own in `secret_keys`, wrapped by the master key in a file (`key_file`). A
//! sealed secret is bound to its tenant and to what it is for (`Purpose`): copied to another tenant's row, or to one that
//! would use it elsewhere, it does not open. Rotation wraps the tenants' keys anew and touches no other row.
//!
//! `Store::seal` and `Store::open_sealed` are all that others need.

mod cipher;
mod key_file;
mod rotate;
pub mod spots;

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use domain::{TenantId, TriggerId};
use uuid::Uuid;

use self::cipher::{Cipher, KEY_BYTES, fresh_key};
use self::key_file::{KeyFile, MasterKeys};
use crate::clock::new_uuid;
use crate::error::StoreError;
use crate::store::Store;
use crate::tx::{Operation, Param, Row, Sql, Tx};

/// What sealed text begins with: no secret that a user may give begins so.
const PREFIX: &str = "sealed.1.";
const ID_BYTES: usize = 16;
/// How long a node seals with a tenant's key before it looks whether there is a newer one.
const CURRENT: Duration = Duration::from_secs(60);
/// What whoever makes, wraps or removes keys holds.
const LOCK: &str = "windlass secret keys";

/// What a secret is for. It opens for nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose<'a> {
    /// Requests to this URL are signed with it.
    Webhook { url: &'a str },
    /// Calls of this trigger's hook are signed with it.
    Hook { trigger: TriggerId },
    /// The environment of this runtime.
    Environment { runtime: &'a str },
}

impl fmt::Display for Purpose<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Webhook { url } => write!(f, "webhook {url}"),
            Self::Hook { trigger } => write!(f, "hook {trigger}"),
            Self::Environment { runtime } => write!(f, "environment {runtime}"),
        }
    }
}

/// Whether the text is a sealed secret.
pub fn is_sealed(text: &str) -> bool {
    text.starts_with(PREFIX)
}

/// What this node knows of keys.
pub(crate) struct SecretKeys {
    file: Arc<KeyFile>,
    opened: RwLock<Opened>,
}

#[derive(Default)]
struct Opened {
    by_id: HashMap<Uuid, Arc<TenantKey>>,
    /// The one that a tenant's secrets are sealed with, and when that was looked up.
    current: HashMap<TenantId, (Arc<TenantKey>, Instant)>,
}

struct TenantKey {
    id: Uuid,
    tenant: TenantId,
    cipher: Cipher,
}

impl SecretKeys {
    pub(crate) fn in_file(path: PathBuf) -> Self {
        Self { file: Arc::new(KeyFile::at(path)), opened: RwLock::default() }
    }

    fn current(&self, tenant: TenantId) -> Option<Arc<TenantKey>> {
        let opened = self.opened.read().expect("no reader panics");
        let (key, looked) = opened.current.get(&tenant)?;
        (looked.elapsed() < CURRENT).then(|| key.clone())
    }

    fn remember(&self, key: &Arc<TenantKey>) {
        self.opened.write().expect("no writer panics").by_id.insert(key.id, key.clone());
    }
}

impl Store {
    /// Text that opens only for this tenant and this purpose. What is sealed already stays as it is.
    pub async fn seal(&self, tenant: TenantId, purpose: Purpose<'_>, secret: &str) -> Result<String, StoreError> {
        if is_sealed(secret) {
            return Ok(secret.to_owned());
        }
        let key = self.tenant_key(tenant).await?;
        let sealed = key.cipher.seal(&bound_to(tenant, purpose), secret.as_bytes());
        Ok(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode([&key.id.into_bytes()[..], &sealed].concat())))
    }

    /// The secret. What was never sealed comes back as it is.
    pub async fn open_sealed(&self, tenant: TenantId, purpose: Purpose<'_>, text: &str) -> Result<String, StoreError> {
        let Some(encoded) = text.strip_prefix(PREFIX) else { return Ok(text.to_owned()) };
        let broken =
            || StoreError::Unusable("a sealed secret does not open: it was changed, or belongs elsewhere".into());
        let bytes = URL_SAFE_NO_PAD.decode(encoded).map_err(|_| broken())?;
        let (id, sealed) = bytes.split_first_chunk::<ID_BYTES>().ok_or_else(broken)?;
        let key = self.key_by_id(Uuid::from_bytes(*id)).await?.filter(|key| key.tenant == tenant).ok_or_else(broken)?;
        let plain = key.cipher.open(&bound_to(tenant, purpose), sealed).ok_or_else(broken)?;
        String::from_utf8(plain).map_err(|_| broken())
    }

    /// Makes sure at the start that what was sealed can be opened here: a key file that is not the one this database was
    /// used with is told now, not when the first secret is needed. Nodes that share a database must share the file before
    /// anything is sealed, so there the first of them makes it.
    pub async fn prepare_secrets(&self) -> Result<(), StoreError> {
        self.read(Check { file: self.secret_keys().file.clone() }).await?;
        if self.is_postgres() {
            self.tenant_key(TenantId::DEFAULT).await?;
        }
        Ok(())
    }

    /// Keys for another purpose than sealing, the same on every node: the first is to be used, all are to be accepted.
    pub fn derived_keys(&self, purpose: &str) -> Result<Vec<[u8; KEY_BYTES]>, StoreError> {
        Ok(self.secret_keys().file.keys_or_make()?.derive(purpose))
    }

    async fn tenant_key(&self, tenant: TenantId) -> Result<Arc<TenantKey>, StoreError> {
        let keys = self.secret_keys();
        if let Some(key) = keys.current(tenant) {
            return Ok(key);
        }
        let key = Arc::new(self.write(FindOrMake { tenant, file: keys.file.clone() }).await?);
        keys.remember(&key);
        keys.opened.write().expect("no writer panics").current.insert(tenant, (key.clone(), Instant::now()));
        Ok(key)
    }

    async fn key_by_id(&self, id: Uuid) -> Result<Option<Arc<TenantKey>>, StoreError> {
        let keys = self.secret_keys();
        if let Some(key) = keys.opened.read().expect("no reader panics").by_id.get(&id) {
            return Ok(Some(key.clone()));
        }
        let found = self.read(Find { id, file: keys.file.clone() }).await?.map(Arc::new);
        found.iter().for_each(|key| keys.remember(key));
        Ok(found)
    }
}

fn bound_to(tenant: TenantId, purpose: Purpose<'_>) -> String {
    format!("windlass secret\0{}\0{purpose}", tenant.0)
}

fn wrapped_for(tenant: TenantId, id: Uuid) -> String {
    format!("windlass tenant key\0{}\0{id}", tenant.0)
}

/// The newest key of a tenant; its first, if it has none.
struct FindOrMake {
    tenant: TenantId,
    file: Arc<KeyFile>,
}

const NEWEST: Sql =
    Sql::both(&["select id, tenant, wrapped from secret_keys where tenant = $1 order by id desc limit 1"]);
const ANY: Sql = Sql::both(&["select id, tenant, wrapped from secret_keys limit 1"]);
const BY_ID: Sql = Sql::both(&["select id, tenant, wrapped from secret_keys where id = $1"]);
const INSERT: Sql = Sql::both(&["insert into secret_keys (id, tenant, wrapped) values ($1, $2, $3)"]);

impl Operation for FindOrMake {
    type Output = TenantKey;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<TenantKey, StoreError> {
        tx.lock(&[LOCK]).await?;
        if let Some(row) = tx.query_opt(&NEWEST, &[Param::Int(self.tenant.0)]).await? {
            return read(&row, &self.file);
        }
        let anything = tx.query_opt(&ANY, &[]).await?.is_some();
        let master = if anything { held(&self.file)? } else { self.file.keys_or_make()? };
        insert(tx, &master, self.tenant).await
    }
}

/// A fresh key for the tenant, wrapped by the newest master key.
async fn insert(tx: &mut Tx<'_>, master: &MasterKeys, tenant: TenantId) -> Result<TenantKey, StoreError> {
    let id = new_uuid(tx.now());
    let secret = fresh_key();
    let wrapped = master.wrap(&wrapped_for(tenant, id), &secret);
    tx.execute(&INSERT, &[Param::Uuid(id), Param::Int(tenant.0), Param::Text(&wrapped)]).await?;
    Ok(TenantKey { id, tenant, cipher: Cipher::new(&secret) })
}

/// Whether the file opens what was wrapped, where anything was.
struct Check {
    file: Arc<KeyFile>,
}

impl Operation for Check {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let row = tx.query_opt(&ANY, &[]).await?;
        row.map(|row| read(&row, &self.file)).transpose().map(|_| ())
    }
}

struct Find {
    id: Uuid,
    file: Arc<KeyFile>,
}

impl Operation for Find {
    type Output = Option<TenantKey>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<TenantKey>, StoreError> {
        let row = tx.query_opt(&BY_ID, &[Param::Uuid(self.id)]).await?;
        row.map(|row| read(&row, &self.file)).transpose()
    }
}

fn read(row: &Row, file: &KeyFile) -> Result<TenantKey, StoreError> {
    let (id, tenant) = (row.uuid(0)?, TenantId(row.int(1)?));
    let secret = held(file)?.unwrap(&wrapped_for(tenant, id), &row.text(2)?).ok_or_else(|| not_ours(file))?;
    Ok(TenantKey { id, tenant, cipher: Cipher::new(&secret) })
}

/// The keys of a file that must be there, because something was sealed with them.
fn held(file: &KeyFile) -> Result<MasterKeys, StoreError> {
    file.keys()?.ok_or_else(|| not_ours(file))
}

fn not_ours(file: &KeyFile) -> StoreError {
    StoreError::Unusable(format!(
        "secrets in this database were sealed with a key that is not in {}: copy the file from where the server ran before, \
         name it with --secret-key-file, or give those secrets up with `windlass secret reset`",
        file.path().display()
    ))
}

#[cfg(test)]
mod tests;
