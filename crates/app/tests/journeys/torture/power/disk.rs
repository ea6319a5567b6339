//! The possible contents of a disk after a power cut: everything that was synced, and any part of the rest.

use rand::rngs::StdRng;
use rand::{Rng, RngExt};

use super::record::{Event, File, Record};

/// The unit that a disk writes completely or not at all.
const SECTOR: usize = 512;

/// File names and contents.
pub(super) type Image = Vec<(String, Vec<u8>)>;

/// How much of the unsynced data has reached the disk.
#[derive(Clone, Copy, Debug)]
pub(super) enum Survival {
    /// All of it: the cut is between two calls.
    All,
    Nothing,
    /// Any writes in any order, and any sectors of a write.
    Random,
}

/// The state of the disk after a number of events.
pub(super) struct Disk<'a> {
    record: &'a Record,
    /// Number of applied events.
    pub(super) at: usize,
    files: Vec<Contents>,
    /// Files whose directory entry is durable.
    listed: Vec<File>,
    /// Creations and removals since the last sync of the folder, in order.
    pending: Vec<usize>,
}

#[derive(Clone, Default)]
struct Contents {
    durable: Vec<u8>,
    /// Unsynced writes, by their index among the events.
    pending: Vec<usize>,
}

impl<'a> Disk<'a> {
    pub(super) fn empty(record: &'a Record) -> Self {
        let files = vec![Contents::default(); record.names.len()];
        Self { record, at: 0, files, listed: Vec::new(), pending: Vec::new() }
    }

    pub(super) fn advance_to(&mut self, at: usize) {
        while self.at < at {
            self.step();
        }
    }

    fn step(&mut self) {
        match &self.record.events[self.at] {
            Event::Create { .. } | Event::Remove { .. } => self.pending.push(self.at),
            Event::SyncFolder => {
                for change in std::mem::take(&mut self.pending) {
                    list(&mut self.listed, &self.record.events[change]);
                }
            }
            Event::Write { file, .. } | Event::Resize { file, .. } => self.files[*file].pending.push(self.at),
            Event::Sync { file, start_index } => {
                let contents = &mut self.files[*file];
                let (covered, later) = contents.pending.iter().partition(|write| **write < *start_index);
                contents.pending = later;
                let covered: Vec<usize> = covered;
                for write in covered {
                    apply(&mut contents.durable, &self.record.events[write], &mut |_| true);
                }
            }
            Event::Response { .. } => {}
        }
        self.at += 1;
    }

    /// Returns what a cut at this moment leaves.
    pub(super) fn image(&self, survival: Survival, rng: &mut StdRng) -> Image {
        let mut listed = self.listed.clone();
        // A file system preserves the order of changes to a folder.
        let arrived = match survival {
            Survival::All => self.pending.len(),
            Survival::Nothing => 0,
            Survival::Random => rng.random_range(0..=self.pending.len()),
        };
        for change in &self.pending[..arrived] {
            list(&mut listed, &self.record.events[*change]);
        }
        listed.iter().map(|file| (self.record.names[*file].clone(), self.contents(*file, survival, rng))).collect()
    }

    fn contents(&self, file: File, survival: Survival, rng: &mut StdRng) -> Vec<u8> {
        let contents = &self.files[file];
        let mut bytes = contents.durable.clone();
        // The share varies between cuts: a fair coin per write would lose about half of the writes every time.
        let share = rng.random_range(0..=8);
        for write in &contents.pending {
            let event = &self.record.events[*write];
            match survival {
                Survival::All => apply(&mut bytes, event, &mut |_| true),
                Survival::Nothing => {}
                Survival::Random if rng.random_range(0..8) >= share => {}
                Survival::Random if rng.random_ratio(3, 4) => apply(&mut bytes, event, &mut |_| true),
                Survival::Random => {
                    let torn = rng.next_u64();
                    apply(&mut bytes, event, &mut |sector| (torn >> (sector % 64)) & 1 == 1);
                }
            }
        }
        bytes
    }
}

fn list(listed: &mut Vec<File>, change: &Event) {
    match change {
        Event::Create { file } => listed.push(*file),
        Event::Remove { file } => listed.retain(|entry| entry != file),
        other => unreachable!("{other:?} changes no folder"),
    }
}

/// Applies the sectors of a write that reached the disk.
fn apply(bytes: &mut Vec<u8>, event: &Event, arrived: &mut dyn FnMut(usize) -> bool) {
    match event {
        Event::Resize { length, .. } => bytes.resize(*length, 0),
        Event::Write { at, bytes: new, .. } => {
            let mut from = 0;
            while from < new.len() {
                // Up to the next sector boundary.
                let sector = (at + from) / SECTOR;
                let to = new.len().min((sector + 1) * SECTOR - at);
                if arrived(sector) {
                    let end = at + to;
                    if bytes.len() < end {
                        bytes.resize(end, 0);
                    }
                    bytes[at + from..end].copy_from_slice(&new[from..to]);
                }
                from = to;
            }
        }
        other => unreachable!("{other:?} writes nothing"),
    }
}
