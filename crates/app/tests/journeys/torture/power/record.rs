//! Reads what `strace` wrote down: writes, syncs and changes of the folder, and the answers that went out between them.

use std::collections::HashMap;
use std::path::Path;

use serde_json::Value;
use uuid::Uuid;

/// A file by the order in which it was made: a name can stand for one file after the other.
pub(super) type File = usize;

/// What was promised to somebody in an answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Promise {
    Accepted(Uuid),
    Claimed(Uuid, i64),
    /// The attempt's end was applied, or the job was called off.
    Ended(Uuid),
}

#[derive(Clone, Debug)]
pub(super) enum Event {
    Make {
        file: File,
    },
    Remove {
        file: File,
    },
    /// The folder was synced: what was made and removed before stays so.
    SyncFolder,
    Write {
        file: File,
        at: usize,
        bytes: Vec<u8>,
    },
    Resize {
        file: File,
        length: usize,
    },
    /// Covers the events before `began`; it is placed where it ended.
    Sync {
        file: File,
        began: usize,
    },
    Answer {
        promises: Vec<Promise>,
    },
}

impl Event {
    pub(super) fn told(&self) -> String {
        match self {
            Self::Make { file } => format!("make {file}"),
            Self::Remove { file } => format!("remove {file}"),
            Self::SyncFolder => "sync folder".into(),
            Self::Write { file, at, bytes } => format!("write {file} at {at}: {}", bytes.len()),
            Self::Resize { file, length } => format!("resize {file} to {length}"),
            Self::Sync { file, began } => format!("sync {file} up to {began}"),
            Self::Answer { promises } => format!("answer {}", promises.len()),
        }
    }
}

pub(super) struct Record {
    pub(super) events: Vec<Event>,
    /// The name of each file, without its folder.
    pub(super) names: Vec<String>,
    folder: String,
    /// The database's own name; its journals begin with it.
    database: String,
    /// Which file a name stands for now.
    current: HashMap<String, File>,
    /// Per thread: a call that had not returned, and how many events there were when it began.
    unfinished: HashMap<String, (String, usize)>,
}

impl Record {
    pub(super) fn new(database: &Path) -> Self {
        let name = |part: Option<&std::ffi::OsStr>| part.expect("a file in a folder").to_string_lossy().into_owned();
        Self {
            events: Vec::new(),
            names: Vec::new(),
            folder: name(database.parent().map(Path::as_os_str)),
            database: name(database.file_name()),
            current: HashMap::new(),
            unfinished: HashMap::new(),
        }
    }

    /// Adds the calls of one life of the server.
    pub(super) fn add(&mut self, trace: &[u8]) {
        self.unfinished.clear();
        for line in String::from_utf8_lossy(trace).lines() {
            let Some((thread, call)) = line.split_once(' ') else { continue };
            let call = call.trim_start();
            if let Some(begun) = call.strip_suffix(" <unfinished ...>") {
                let began = self.events.len();
                // A write counts from where it began: it may have happened from then on.
                if !begun.starts_with("fsync") && !begun.starts_with("fdatasync") {
                    self.call(begun, began);
                } else {
                    self.unfinished.insert(thread.to_owned(), (begun.to_owned(), began));
                }
            } else if call.starts_with("<... ") {
                // A sync that was under way when the server was killed has promised nothing.
                if let Some((begun, began)) = self.unfinished.remove(thread).filter(|_| !call.ends_with("= ?")) {
                    assert!(call.ends_with("= 0"), "a sync failed: {call}");
                    self.call(&begun, began);
                }
            } else {
                self.call(call, self.events.len());
            }
        }
    }

    fn call(&mut self, call: &str, began: usize) {
        let Some((name, arguments)) = call.split_once('(') else { return };
        let texts: Vec<Vec<u8>> = arguments.split('"').skip(1).step_by(2).map(unhex).collect();
        let text = || texts.first().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).unwrap_or_default();
        // `-y` tells what a descriptor stands for.
        let path = arguments.split(['<', '>']).nth(1).map(unhex).unwrap_or_default();
        let path = String::from_utf8_lossy(&path).into_owned();
        match name {
            "openat" if arguments.contains("O_CREAT") => self.made(&text()),
            "unlink" => self.removed(&text()),
            "fsync" | "fdatasync" if path == self.folder => self.events.push(Event::SyncFolder),
            "fsync" | "fdatasync" => {
                if let Some(file) = self.file(&path) {
                    self.events.push(Event::Sync { file, began });
                }
            }
            "pwrite64" => {
                if let Some(file) = self.file(&path) {
                    let at = number(arguments.rsplit_once('"').expect("a write has bytes").1, 2);
                    let bytes = texts.into_iter().next().expect("a write has bytes");
                    self.events.push(Event::Write { file, at, bytes });
                }
            }
            "ftruncate" => {
                if let Some(file) = self.file(&path) {
                    let length = number(arguments.split_once('>').expect("a descriptor").1, 1);
                    self.events.push(Event::Resize { file, length });
                }
            }
            "write" | "pwritev" | "fallocate" if self.file(&path).is_some() => {
                panic!("SQLite writes in a way that the recording does not know: {name}")
            }
            "write" | "writev" | "sendto" if path.starts_with("socket:") => self.answered(&texts.concat()),
            _ => {}
        }
    }

    /// Files whose loss would matter: the database and its journals, not what SQLite shares in memory.
    fn named(&self, path: &str) -> Option<String> {
        let name = path.strip_prefix(&self.folder)?.strip_prefix('/')?;
        let journal = name.strip_prefix(&self.database)?;
        ["", "-wal", "-journal"].contains(&journal).then(|| name.to_owned())
    }

    fn file(&self, path: &str) -> Option<File> {
        self.current.get(&self.named(path)?).copied()
    }

    fn made(&mut self, path: &str) {
        let Some(name) = self.named(path).filter(|name| !self.current.contains_key(name)) else { return };
        let file = self.names.len();
        self.names.push(name.clone());
        self.current.insert(name, file);
        self.events.push(Event::Make { file });
    }

    fn removed(&mut self, path: &str) {
        if let Some(file) = self.named(path).and_then(|name| self.current.remove(&name)) {
            self.events.push(Event::Remove { file });
        }
    }

    fn answered(&mut self, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes);
        let Some((head, body)) = text.split_once("\r\n\r\n").filter(|(head, _)| head.starts_with("HTTP/1.1 2")) else {
            return;
        };
        let Ok(body) = serde_json::from_str::<Value>(body) else { return };
        let promises = promises(head.starts_with("HTTP/1.1 202"), &body);
        if !promises.is_empty() {
            self.events.push(Event::Answer { promises });
        }
    }

    /// As if a commit did not wait for the disk, which is what `synchronous = normal` means: the WAL is synced only before
    /// it is folded into the database.
    pub(super) fn forget_syncs_of_commits(&mut self) {
        let is_wal = |names: &[String], file: File| names[file].ends_with("-wal");
        for at in 0..self.events.len() {
            let Event::Sync { file, .. } = self.events[at] else { continue };
            let next = self.events[at + 1..].iter().find_map(|event| match event {
                Event::Write { file, .. } | Event::Resize { file, .. } => Some(*file),
                _ => None,
            });
            if is_wal(&self.names, file) && next.is_none_or(|next| is_wal(&self.names, next)) {
                self.events[at] = Event::Answer { promises: Vec::new() };
            }
        }
    }
}

fn promises(accepted: bool, body: &Value) -> Vec<Promise> {
    let id = |value: &Value| value.as_str().and_then(|text| text.parse().ok());
    let list = |name: &str| body[name].as_array().cloned().unwrap_or_default();
    let mut promises = Vec::new();
    if accepted && body["state"].is_string() {
        promises.extend(id(&body["id"]).map(Promise::Accepted));
    } else if body["state"] == "canceled" {
        promises.extend(id(&body["id"]).map(Promise::Ended));
    }
    promises.extend(list("ids").iter().filter_map(id).map(Promise::Accepted));
    let claimed = |job: &Value| Some(Promise::Claimed(id(&job["id"])?, job["epoch"].as_i64()?));
    promises.extend(list("jobs").iter().filter_map(claimed));
    let applied = list("results").into_iter().filter(|result| result["status"] == "applied");
    promises.extend(applied.filter_map(|result| id(&result["job_id"])).map(Promise::Ended));
    promises
}

/// The number after so many commas.
fn number(arguments: &str, commas: usize) -> usize {
    let text = arguments.split(',').nth(commas).unwrap_or_default();
    let digits: String = text.trim().chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("no number in `{arguments}`"))
}

/// `\x41\x42` as bytes; what is not written so is left out.
fn unhex(text: &str) -> Vec<u8> {
    let digit = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
    let byte = |pair: &[u8]| Some((digit(*pair.get(2)?)? << 4) | digit(*pair.get(3)?)?);
    text.as_bytes().chunks(4).filter(|chunk| chunk.starts_with(b"\\x")).filter_map(byte).collect()
}
