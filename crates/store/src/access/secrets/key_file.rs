//! The master keys, in a file outside the database: one key per line, newest first. New keys are wrapped with the first
//! line. The older lines only unwrap what they wrapped.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::hmac;
use sha2::{Digest, Sha256};

use super::cipher::{Cipher, KEY_BYTES, fresh_key};
use crate::db::clock::fill_random;
use crate::db::private_files;
use crate::error::StoreError;

const LINE_PREFIX: &str = "windlass-key-1";
/// Maximum number of keys in one file.
const MAX_KEYS: usize = 16;
const ID_BYTES: usize = 4;

/// The key file. It is read on first use and reread when it has changed.
pub(crate) struct KeyFile {
    path: PathBuf,
    cached: Mutex<Option<CachedKeys>>,
}

struct CachedKeys {
    keys: MasterKeys,
    stamp: Stamp,
}

/// Identifies a version of the file. A rotation renames a new file over the old one, which changes the inode.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    written: (i64, i64),
}

/// A snapshot of the master keys, newest first.
#[derive(Clone)]
pub(super) struct MasterKeys(Arc<Vec<MasterKey>>);

struct MasterKey {
    id: [u8; ID_BYTES],
    secret: [u8; KEY_BYTES],
    cipher: Cipher,
}

impl MasterKeys {
    /// Encrypts a key with the newest master key.
    pub(super) fn wrap(&self, bound_to: &str, key: &[u8; KEY_BYTES]) -> String {
        let newest = &self.0[0];
        URL_SAFE_NO_PAD.encode([&newest.id[..], &newest.cipher.seal(bound_to, key)].concat())
    }

    /// Decrypts a wrapped key. Returns `None` if none of these master keys wrapped it.
    pub(super) fn unwrap(&self, bound_to: &str, wrapped: &str) -> Option<[u8; KEY_BYTES]> {
        let bytes = URL_SAFE_NO_PAD.decode(wrapped).ok()?;
        let (id, sealed) = bytes.split_first_chunk::<ID_BYTES>()?;
        let key = self.0.iter().find(|key| key.id == *id)?;
        key.cipher.open(bound_to, sealed)?.try_into().ok()
    }

    /// Derives one key per master key for another purpose, newest first. Nodes with the same file derive the same keys.
    pub(super) fn derive(&self, purpose: &str) -> Vec<[u8; KEY_BYTES]> {
        let derive = |key: &MasterKey| {
            let key = hmac::Key::new(hmac::HMAC_SHA256, &key.secret);
            let derived = hmac::sign(&key, format!("windlass derived key\0{purpose}").as_bytes());
            *derived.as_ref().first_chunk().expect("a digest has as many bytes")
        };
        self.0.iter().map(derive).collect()
    }
}

impl KeyFile {
    pub(crate) fn at(path: PathBuf) -> Self {
        Self { path, cached: Mutex::new(None) }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the current keys. `None` if the file does not exist.
    pub(super) fn keys(&self) -> Result<Option<MasterKeys>, StoreError> {
        let mut cached = self.cached.lock().expect("lock poisoned");
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.error(error)),
        };
        let metadata = file.metadata().map_err(|error| self.error(error))?;
        let stamp = Stamp { inode: metadata.ino(), written: (metadata.mtime(), metadata.mtime_nsec()) };
        if let Some(cached) = cached.as_ref().filter(|cached| cached.stamp == stamp) {
            return Ok(Some(cached.keys.clone()));
        }
        if metadata.permissions().mode() & 0o007 != 0 {
            return Err(self.error(format!("it is accessible to all users; run `chmod 600 {}`", self.path.display())));
        }
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(|error| self.error(error))?;
        let keys = self.parse(&text)?;
        *cached = Some(CachedKeys { keys: keys.clone(), stamp });
        Ok(Some(keys))
    }

    /// Returns the current keys. Creates the file with one new key if it does not exist.
    pub(super) fn keys_or_create(&self) -> Result<MasterKeys, StoreError> {
        if let Some(keys) = self.keys()? {
            return Ok(keys);
        }
        let create = || -> std::io::Result<()> {
            if let Some(folder) = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
                private_files::create_folder(folder)?;
            }
            write_temporary(&self.path, &[line(&fresh_key())], |temporary| {
                // Unlike a rename, a hard link does not replace an existing file: if two processes create the file
                // concurrently, the first wins.
                std::fs::hard_link(temporary, &self.path)?;
                std::fs::remove_file(temporary)
            })
        };
        match create() {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(self.error(error)),
            _ => {}
        }
        self.keys()?.ok_or_else(|| self.error("it was created and then disappeared"))
    }

    /// Adds a new key as the newest.
    pub(super) fn add(&self) -> Result<MasterKeys, StoreError> {
        let keys = self.keys_or_create()?;
        let lines: Vec<String> =
            std::iter::once(fresh_key()).chain(keys.0.iter().map(|key| key.secret)).map(|k| line(&k)).collect();
        if lines.len() > MAX_KEYS {
            return Err(self.error(format!("it already has {MAX_KEYS} keys, the maximum; remove the last lines")));
        }
        self.replace(&lines)
    }

    /// Removes all keys but the newest.
    pub(super) fn remove_old_keys(&self) -> Result<MasterKeys, StoreError> {
        let keys = self.keys_or_create()?;
        self.replace(&[line(&keys.0[0].secret)])
    }

    /// Replaces the file atomically: a reader sees the old or the new content.
    fn replace(&self, lines: &[String]) -> Result<MasterKeys, StoreError> {
        write_temporary(&self.path, lines, |temporary| std::fs::rename(temporary, &self.path))
            .map_err(|error| self.error(error))?;
        self.keys()?.ok_or_else(|| self.error("it was written and then disappeared"))
    }

    fn parse(&self, text: &str) -> Result<MasterKeys, StoreError> {
        let key = |line: &str| {
            let secret = line.strip_prefix(LINE_PREFIX).and_then(|rest| STANDARD.decode(rest.trim()).ok());
            let secret: [u8; KEY_BYTES] = secret?.try_into().ok()?;
            Some(MasterKey { id: id_of(&secret), secret, cipher: Cipher::new(&secret) })
        };
        let keys: Option<Vec<MasterKey>> = text.lines().filter(|line| !line.trim().is_empty()).map(key).collect();
        let keys = keys.filter(|keys| (1..=MAX_KEYS).contains(&keys.len())).map(|keys| MasterKeys(Arc::new(keys)));
        keys.ok_or_else(|| {
            self.error(format!(
                "each line must be `{LINE_PREFIX} ` and {KEY_BYTES} bytes in base64, at most {MAX_KEYS} lines"
            ))
        })
    }

    pub(super) fn error(&self, reason: impl std::fmt::Display) -> StoreError {
        StoreError::Unusable(format!("cannot use the key file {}: {reason}", self.path.display()))
    }
}

/// Writes a temporary file with mode 0600, syncs it and calls `publish` to move it to its final name.
fn write_temporary(
    path: &Path,
    lines: &[String],
    publish: impl FnOnce(&Path) -> std::io::Result<()>,
) -> std::io::Result<()> {
    // A random name keeps concurrent writers apart.
    let mut name = [0; 8];
    fill_random(&mut name);
    let temporary = path.with_extension(format!("{:016x}.new", u64::from_le_bytes(name)));
    let mut file = private_files::create_file(&temporary)?;
    file.write_all((lines.join("\n") + "\n").as_bytes())?;
    file.sync_all()?;
    let published = publish(&temporary);
    let _removed = std::fs::remove_file(&temporary);
    published?;
    // Sync the directory too, so that the name survives a power loss: everything sealed from now on needs these keys.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

fn line(secret: &[u8; KEY_BYTES]) -> String {
    format!("{LINE_PREFIX} {}", STANDARD.encode(secret))
}

/// Returns an identifier of a key that reveals nothing about it.
fn id_of(secret: &[u8; KEY_BYTES]) -> [u8; ID_BYTES] {
    let digest = Sha256::new().chain_update(b"windlass key id").chain_update(secret).finalize();
    *digest.first_chunk().expect("a digest is longer")
}
