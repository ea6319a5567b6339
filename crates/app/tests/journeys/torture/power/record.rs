//! Parses a trace of `strace`: writes, syncs, changes of the folder, and the HTTP responses between them.

use std::collections::HashMap;
use std::path::Path;

use serde_json::Value;
use uuid::Uuid;

/// A file, numbered in order of creation. A name can stand for several files over time.
pub(super) type File = usize;

/// A fact that a response acknowledged.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Promise {
    Accepted(Uuid),
    Claimed(Uuid, i64),
    /// The outcome was applied, or the job was canceled.
    Ended(Uuid),
}

#[derive(Clone, Debug)]
pub(super) enum Event {
    Create {
        file: File,
    },
    Remove {
        file: File,
    },
    /// Earlier creations and removals are durable.
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
    /// Covers the events before `start_index`. Its position among the events is the end of the sync.
    Sync {
        file: File,
        start_index: usize,
    },
    Response {
        promises: Vec<Promise>,
    },
}

impl Event {
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Create { file } => format!("create {file}"),
            Self::Remove { file } => format!("remove {file}"),
            Self::SyncFolder => "sync folder".into(),
            Self::Write { file, at, bytes } => format!("write {file} at {at}: {}", bytes.len()),
            Self::Resize { file, length } => format!("resize {file} to {length}"),
            Self::Sync { file, start_index } => format!("sync {file} up to {start_index}"),
            Self::Response { promises } => format!("response {}", promises.len()),
        }
    }
}

pub(super) struct Record {
    pub(super) events: Vec<Event>,
    /// The name of each file, without its folder.
    pub(super) names: Vec<String>,
    folder: String,
    /// The file name of the database, which is the prefix of its journals.
    database: String,
    /// The file that each name currently stands for.
    current: HashMap<String, File>,
    /// Per thread: a call that has not returned, and the number of events at its start.
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

    /// Adds the calls of one run of the server.
    pub(super) fn add(&mut self, trace: &[u8]) {
        self.unfinished.clear();
        for line in String::from_utf8_lossy(trace).lines() {
            let Some((thread, call)) = line.split_once(' ') else { continue };
            let call = call.trim_start();
            if let Some(start) = call.strip_suffix(" <unfinished ...>") {
                let start_index = self.events.len();
                // A write may take effect from its start on, so it is recorded there.
                if !start.starts_with("fsync") && !start.starts_with("fdatasync") {
                    self.call(start, start_index);
                } else {
                    self.unfinished.insert(thread.to_owned(), (start.to_owned(), start_index));
                }
            } else if call.starts_with("<... ") {
                // A sync interrupted by a kill guarantees nothing.
                if let Some((start, start_index)) = self.unfinished.remove(thread).filter(|_| !call.ends_with("= ?")) {
                    assert!(call.ends_with("= 0"), "a sync failed: {call}");
                    self.call(&start, start_index);
                }
            } else {
                self.call(call, self.events.len());
            }
        }
    }

    fn call(&mut self, call: &str, start_index: usize) {
        let Some((name, arguments)) = call.split_once('(') else { return };
        let texts: Vec<Vec<u8>> = arguments.split('"').skip(1).step_by(2).map(unhex).collect();
        let text = || texts.first().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).unwrap_or_default();
        // With `-y` strace adds the path of each descriptor.
        let path = arguments.split(['<', '>']).nth(1).map(unhex).unwrap_or_default();
        let path = String::from_utf8_lossy(&path).into_owned();
        match name {
            "openat" if arguments.contains("O_CREAT") => self.create(&text()),
            "unlink" => self.remove(&text()),
            "fsync" | "fdatasync" if path == self.folder => self.events.push(Event::SyncFolder),
            "fsync" | "fdatasync" => {
                if let Some(file) = self.file(&path) {
                    self.events.push(Event::Sync { file, start_index });
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
                panic!("SQLite wrote with a system call that the recording does not support: {name}")
            }
            "write" | "writev" | "sendto" if path.starts_with("socket:") => self.respond(&texts.concat()),
            _ => {}
        }
    }

    /// Returns the name of a durable file: the database and its journals, but not the shared-memory file.
    fn durable_name(&self, path: &str) -> Option<String> {
        let name = path.strip_prefix(&self.folder)?.strip_prefix('/')?;
        let journal = name.strip_prefix(&self.database)?;
        ["", "-wal", "-journal"].contains(&journal).then(|| name.to_owned())
    }

    fn file(&self, path: &str) -> Option<File> {
        self.current.get(&self.durable_name(path)?).copied()
    }

    fn create(&mut self, path: &str) {
        let Some(name) = self.durable_name(path).filter(|name| !self.current.contains_key(name)) else { return };
        let file = self.names.len();
        self.names.push(name.clone());
        self.current.insert(name, file);
        self.events.push(Event::Create { file });
    }

    fn remove(&mut self, path: &str) {
        if let Some(file) = self.durable_name(path).and_then(|name| self.current.remove(&name)) {
            self.events.push(Event::Remove { file });
        }
    }

    fn respond(&mut self, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes);
        let Some((head, body)) = text.split_once("\r\n\r\n").filter(|(head, _)| head.starts_with("HTTP/1.1 2")) else {
            return;
        };
        let Ok(body) = serde_json::from_str::<Value>(body) else { return };
        let promises = promises(head.starts_with("HTTP/1.1 202"), &body);
        if !promises.is_empty() {
            self.events.push(Event::Response { promises });
        }
    }

    /// Removes the syncs of commits, as `synchronous = normal` does: the WAL is synced only before a checkpoint.
    pub(super) fn remove_commit_syncs(&mut self) {
        let is_wal = |names: &[String], file: File| names[file].ends_with("-wal");
        for at in 0..self.events.len() {
            let Event::Sync { file, .. } = self.events[at] else { continue };
            let next = self.events[at + 1..].iter().find_map(|event| match event {
                Event::Write { file, .. } | Event::Resize { file, .. } => Some(*file),
                _ => None,
            });
            if is_wal(&self.names, file) && next.is_none_or(|next| is_wal(&self.names, next)) {
                self.events[at] = Event::Response { promises: Vec::new() };
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

/// Parses the number after this many commas.
fn number(arguments: &str, commas: usize) -> usize {
    let text = arguments.split(',').nth(commas).unwrap_or_default();
    let digits: String = text.trim().chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("no number in `{arguments}`"))
}

/// Decodes `\x41\x42`. Other characters are ignored.
fn unhex(text: &str) -> Vec<u8> {
    let digit = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
    let byte = |pair: &[u8]| Some((digit(*pair.get(2)?)? << 4) | digit(*pair.get(3)?)?);
    text.as_bytes().chunks(4).filter(|chunk| chunk.starts_with(b"\\x")).filter_map(byte).collect()
}
