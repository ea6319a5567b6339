//! Encryption of secrets at rest. Webhook secrets, hook secrets and runtime environments are sealed before they reach the
//! database, with a key that is not stored there.
//!
//! This is envelope encryption: every tenant has its own data key in `secret_keys`, wrapped by the master key in a file
//! (`key_file`). A sealed secret is bound to its tenant and its `Purpose`: a copy in another tenant's row, or in a row
//! that would send it elsewhere, does not open. A rotation rewraps the tenants' keys and changes no other row.
//!
//! Other modules call `Store::seal` and `Store::open_sealed`.

mod cipher;
mod key_file;
mod rotate;
pub mod secret_fields;

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
use crate::db::clock::new_uuid;
use crate::db::tx::{Operation, Param, Row, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

/// Prefix of sealed text. Validation rejects user-supplied secrets that start with it.
const PREFIX: &str = "sealed.1.";
const ID_BYTES: usize = 16;
/// How long a node seals with a cached tenant key before it checks for a newer one.
const MAX_KEY_AGE: Duration = Duration::from_secs(60);
/// Name of the database lock held while keys are created, rewrapped or deleted.
const LOCK: &str = "windlass secret keys";

/// What a secret is used for. It opens only for the purpose that it was sealed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose<'a> {
    /// Signs requests to this URL.
    Webhook { url: &'a str },
    /// Verifies the signature of calls to this trigger's hook.
    Hook { trigger: TriggerId },
    /// Belongs to the environment of this runtime.
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

/// Returns true if the text is a sealed secret.
pub fn is_sealed(text: &str) -> bool {
    text.starts_with(PREFIX)
}

/// The key file and the unwrapped tenant keys that this node has cached.
pub(crate) struct SecretKeys {
    file: Arc<KeyFile>,
    opened: RwLock<OpenedKeys>,
}

#[derive(Default)]
struct OpenedKeys {
    by_id: HashMap<Uuid, Arc<TenantKey>>,
    /// The key that seals a tenant's new secrets, and when it was looked up.
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
        let opened = self.opened.read().expect("lock poisoned");
        let (key, checked_at) = opened.current.get(&tenant)?;
        (checked_at.elapsed() < MAX_KEY_AGE).then(|| key.clone())
    }

    fn insert(&self, key: &Arc<TenantKey>) {
        self.opened.write().expect("lock poisoned").by_id.insert(key.id, key.clone());
    }
}

impl Store {
    /// Seals a secret for this tenant and purpose. Text that is already sealed is returned unchanged.
    pub async fn seal(&self, tenant: TenantId, purpose: Purpose<'_>, secret: &str) -> Result<String, StoreError> {
        if is_sealed(secret) {
            return Ok(secret.to_owned());
        }
        let key = self.tenant_key(tenant).await?;
        let sealed = key.cipher.seal(&bound_to(tenant, purpose), secret.as_bytes());
        Ok(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode([&key.id.into_bytes()[..], &sealed].concat())))
    }

    /// Opens a sealed secret. Text that is not sealed is returned unchanged.
    pub async fn open_sealed(&self, tenant: TenantId, purpose: Purpose<'_>, text: &str) -> Result<String, StoreError> {
        let Some(encoded) = text.strip_prefix(PREFIX) else { return Ok(text.to_owned()) };
        let unusable = || {
            StoreError::Unusable(
                "cannot open a sealed secret: it was modified, or it was sealed for another tenant or purpose".into(),
            )
        };
        let bytes = URL_SAFE_NO_PAD.decode(encoded).map_err(|_| unusable())?;
        let (id, sealed) = bytes.split_first_chunk::<ID_BYTES>().ok_or_else(unusable)?;
        let key =
            self.key_by_id(Uuid::from_bytes(*id)).await?.filter(|key| key.tenant == tenant).ok_or_else(unusable)?;
        let plain = key.cipher.open(&bound_to(tenant, purpose), sealed).ok_or_else(unusable)?;
        String::from_utf8(plain).map_err(|_| unusable())
    }

    /// Checks at startup that the key file matches the database, so that a wrong file is reported now and not when the
    /// first secret is needed.
    ///
    /// On PostgreSQL it also creates the first key: nodes that share a database must share the key file before anything is
    /// sealed.
    pub async fn prepare_secrets(&self) -> Result<(), StoreError> {
        self.read(CheckKeyFile { file: self.secret_keys().file.clone() }).await?;
        if self.is_postgres() {
            self.tenant_key(TenantId::DEFAULT).await?;
        }
        Ok(())
    }

    /// Derives keys for a purpose other than sealing. They are the same on every node. Use the first key for new values and
    /// accept all of them.
    pub fn derived_keys(&self, purpose: &str) -> Result<Vec<[u8; KEY_BYTES]>, StoreError> {
        Ok(self.secret_keys().file.keys_or_create()?.derive(purpose))
    }

    async fn tenant_key(&self, tenant: TenantId) -> Result<Arc<TenantKey>, StoreError> {
        let keys = self.secret_keys();
        if let Some(key) = keys.current(tenant) {
            return Ok(key);
        }
        let key = Arc::new(self.write(FindOrCreateTenantKey { tenant, file: keys.file.clone() }).await?);
        keys.insert(&key);
        keys.opened.write().expect("lock poisoned").current.insert(tenant, (key.clone(), Instant::now()));
        Ok(key)
    }

    async fn key_by_id(&self, id: Uuid) -> Result<Option<Arc<TenantKey>>, StoreError> {
        let keys = self.secret_keys();
        if let Some(key) = keys.opened.read().expect("lock poisoned").by_id.get(&id) {
            return Ok(Some(key.clone()));
        }
        let found = self.read(FindTenantKey { id, file: keys.file.clone() }).await?.map(Arc::new);
        found.iter().for_each(|key| keys.insert(key));
        Ok(found)
    }
}

fn bound_to(tenant: TenantId, purpose: Purpose<'_>) -> String {
    format!("windlass secret\0{}\0{purpose}", tenant.0)
}

fn wrapped_for(tenant: TenantId, id: Uuid) -> String {
    format!("windlass tenant key\0{}\0{id}", tenant.0)
}

/// Returns the newest key of a tenant. Creates the first key if the tenant has none.
struct FindOrCreateTenantKey {
    tenant: TenantId,
    file: Arc<KeyFile>,
}

const NEWEST: Sql =
    Sql::both(&["select id, tenant, wrapped from secret_keys where tenant = $1 order by id desc limit 1"]);
const ANY: Sql = Sql::both(&["select id, tenant, wrapped from secret_keys limit 1"]);
const BY_ID: Sql = Sql::both(&["select id, tenant, wrapped from secret_keys where id = $1"]);
const INSERT: Sql = Sql::both(&["insert into secret_keys (id, tenant, wrapped) values ($1, $2, $3)"]);

impl Operation for FindOrCreateTenantKey {
    type Output = TenantKey;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<TenantKey, StoreError> {
        tx.lock(&[LOCK]).await?;
        if let Some(row) = tx.query_opt(&NEWEST, &[Param::Int(self.tenant.0)]).await? {
            return read(&row, &self.file);
        }
        let has_keys = tx.query_opt(&ANY, &[]).await?.is_some();
        let master = if has_keys { existing_keys(&self.file)? } else { self.file.keys_or_create()? };
        insert(tx, &master, self.tenant).await
    }
}

/// Creates a key for the tenant, wrapped by the newest master key.
async fn insert(tx: &mut Tx<'_>, master: &MasterKeys, tenant: TenantId) -> Result<TenantKey, StoreError> {
    let id = new_uuid(tx.now());
    let secret = fresh_key();
    let wrapped = master.wrap(&wrapped_for(tenant, id), &secret);
    tx.execute(&INSERT, &[Param::Uuid(id), Param::Int(tenant.0), Param::Text(&wrapped)]).await?;
    Ok(TenantKey { id, tenant, cipher: Cipher::new(&secret) })
}

/// Fails if the database has wrapped keys that the key file cannot unwrap.
struct CheckKeyFile {
    file: Arc<KeyFile>,
}

impl Operation for CheckKeyFile {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let row = tx.query_opt(&ANY, &[]).await?;
        row.map(|row| read(&row, &self.file)).transpose().map(|_| ())
    }
}

struct FindTenantKey {
    id: Uuid,
    file: Arc<KeyFile>,
}

impl Operation for FindTenantKey {
    type Output = Option<TenantKey>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<TenantKey>, StoreError> {
        let row = tx.query_opt(&BY_ID, &[Param::Uuid(self.id)]).await?;
        row.map(|row| read(&row, &self.file)).transpose()
    }
}

fn read(row: &Row, file: &KeyFile) -> Result<TenantKey, StoreError> {
    let (id, tenant) = (row.uuid("id")?, TenantId(row.int("tenant")?));
    let secret = existing_keys(file)?
        .unwrap(&wrapped_for(tenant, id), &row.text("wrapped")?)
        .ok_or_else(|| missing_key(file))?;
    Ok(TenantKey { id, tenant, cipher: Cipher::new(&secret) })
}

/// Reads the keys of a file that must exist, because the database has keys wrapped with them.
fn existing_keys(file: &KeyFile) -> Result<MasterKeys, StoreError> {
    file.keys()?.ok_or_else(|| missing_key(file))
}

fn missing_key(file: &KeyFile) -> StoreError {
    StoreError::Unusable(format!(
        "secrets in this database are sealed with a key that is not in {}: copy the key file from the previous server, \
         pass its path with --secret-key-file, or discard the sealed secrets with `windlass secret reset`",
        file.path().display()
    ))
}

#[cfg(test)]
mod tests;
