//! The file with the master keys, outside the database: newest first, one a line. Older ones open what they wrapped.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::hmac;
use sha2::{Digest, Sha256};

use super::cipher::{Cipher, KEY_BYTES, fresh_key};
use crate::clock::fill_random;
use crate::error::StoreError;

const LINE: &str = "windlass-key-1";
/// Keys one file may hold.
const KEYS: usize = 16;
const ID_BYTES: usize = 4;

/// Read when it is first needed, and again when it has changed.
pub(crate) struct KeyFile {
    path: PathBuf,
    held: Mutex<Option<Held>>,
}

struct Held {
    keys: MasterKeys,
    stamp: Stamp,
}

/// Another file, or the same written again, has another stamp: a rotation puts a new file in the place of the old.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    written: (i64, i64),
}

/// The master keys of one moment, newest first.
#[derive(Clone)]
pub(super) struct MasterKeys(Arc<Vec<MasterKey>>);

struct MasterKey {
    id: [u8; ID_BYTES],
    secret: [u8; KEY_BYTES],
    cipher: Cipher,
}

impl MasterKeys {
    pub(super) fn wrap(&self, bound_to: &str, key: &[u8; KEY_BYTES]) -> String {
        let newest = &self.0[0];
        URL_SAFE_NO_PAD.encode([&newest.id[..], &newest.cipher.seal(bound_to, key)].concat())
    }

    /// Nothing where none of these keys wrapped it.
    pub(super) fn unwrap(&self, bound_to: &str, wrapped: &str) -> Option<[u8; KEY_BYTES]> {
        let bytes = URL_SAFE_NO_PAD.decode(wrapped).ok()?;
        let (id, sealed) = bytes.split_first_chunk::<ID_BYTES>()?;
        let key = self.0.iter().find(|key| key.id == *id)?;
        key.cipher.open(bound_to, sealed)?.try_into().ok()
    }

    /// A key for something else, of each of these, newest first; the same wherever the file is the same.
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
        Self { path, held: Mutex::new(None) }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The keys as the file has them now; nothing where there is no file.
    pub(super) fn keys(&self) -> Result<Option<MasterKeys>, StoreError> {
        let mut held = self.held.lock().expect("nobody panics with it in hand");
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.error(error)),
        };
        let metadata = file.metadata().map_err(|error| self.error(error))?;
        let stamp = Stamp { inode: metadata.ino(), written: (metadata.mtime(), metadata.mtime_nsec()) };
        if let Some(held) = held.as_ref().filter(|held| held.stamp == stamp) {
            return Ok(Some(held.keys.clone()));
        }
        if metadata.permissions().mode() & 0o007 != 0 {
            return Err(self.error(format!("everyone may read it; run: chmod 600 {}", self.path.display())));
        }
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(|error| self.error(error))?;
        let keys = self.parse(&text)?;
        *held = Some(Held { keys: keys.clone(), stamp });
        Ok(Some(keys))
    }

    /// The keys, in a new file if there is none.
    pub(super) fn keys_or_make(&self) -> Result<MasterKeys, StoreError> {
        if let Some(keys) = self.keys()? {
            return Ok(keys);
        }
        let make = || -> std::io::Result<()> {
            if let Some(folder) = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
                std::fs::create_dir_all(folder)?;
            }
            write_beside(&self.path, &[line(&fresh_key())], |beside| {
                // Unlike a rename this takes no other's place: of two processes that make one, the first counts.
                std::fs::hard_link(beside, &self.path)?;
                std::fs::remove_file(beside)
            })
        };
        match make() {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(self.error(error)),
            _ => {}
        }
        self.keys()?.ok_or_else(|| self.error("it was made and is gone again"))
    }

    /// Puts a new key before the others.
    pub(super) fn add(&self) -> Result<MasterKeys, StoreError> {
        let keys = self.keys_or_make()?;
        let lines: Vec<String> =
            std::iter::once(fresh_key()).chain(keys.0.iter().map(|key| key.secret)).map(|k| line(&k)).collect();
        if lines.len() > KEYS {
            return Err(self.error(format!("it holds {KEYS} keys already; remove the last ones")));
        }
        self.replace(&lines)
    }

    /// Keeps the newest key alone.
    pub(super) fn forget_old(&self) -> Result<MasterKeys, StoreError> {
        let keys = self.keys_or_make()?;
        self.replace(&[line(&keys.0[0].secret)])
    }

    /// Whole or not at all: a reader sees the file before or after.
    fn replace(&self, lines: &[String]) -> Result<MasterKeys, StoreError> {
        write_beside(&self.path, lines, |beside| std::fs::rename(beside, &self.path))
            .map_err(|error| self.error(error))?;
        self.keys()?.ok_or_else(|| self.error("it was written and is gone again"))
    }

    fn parse(&self, text: &str) -> Result<MasterKeys, StoreError> {
        let key = |line: &str| {
            let secret = line.strip_prefix(LINE).and_then(|rest| STANDARD.decode(rest.trim()).ok());
            let secret: [u8; KEY_BYTES] = secret?.try_into().ok()?;
            Some(MasterKey { id: id_of(&secret), secret, cipher: Cipher::new(&secret) })
        };
        let keys: Option<Vec<MasterKey>> = text.lines().filter(|line| !line.trim().is_empty()).map(key).collect();
        let keys = keys.filter(|keys| (1..=KEYS).contains(&keys.len())).map(|keys| MasterKeys(Arc::new(keys)));
        keys.ok_or_else(|| self.error(format!("it must hold lines of `{LINE} ` and the base64 of {KEY_BYTES} bytes")))
    }

    pub(super) fn error(&self, reason: impl std::fmt::Display) -> StoreError {
        StoreError::Unusable(format!("the key file {} cannot be used: {reason}", self.path.display()))
    }
}

/// Writes a file that only its owner may read, durable before it takes its place.
fn write_beside(
    path: &Path,
    lines: &[String],
    place: impl FnOnce(&Path) -> std::io::Result<()>,
) -> std::io::Result<()> {
    // A name of its own, so that two who write at once do not meet.
    let mut name = [0; 8];
    fill_random(&mut name);
    let beside = path.with_extension(format!("{:016x}.new", u64::from_le_bytes(name)));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
    file.write_all((lines.join("\n") + "\n").as_bytes())?;
    file.sync_all()?;
    let placed = place(&beside);
    let _gone = std::fs::remove_file(&beside);
    placed?;
    // Its name too must outlast a power cut: what is sealed from now on opens with these keys alone.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

fn line(secret: &[u8; KEY_BYTES]) -> String {
    format!("{LINE} {}", STANDARD.encode(secret))
}

/// Tells keys apart without telling anything of them.
fn id_of(secret: &[u8; KEY_BYTES]) -> [u8; ID_BYTES] {
    let digest = Sha256::new().chain_update(b"windlass key id").chain_update(secret).finalize();
    *digest.first_chunk().expect("a digest is longer")
}
