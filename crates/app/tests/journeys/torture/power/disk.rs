//! What a disk may hold after the power went: everything that was synced, and of the rest whatever chance left.

use rand::rngs::StdRng;
use rand::{Rng, RngExt};

use super::record::{Event, File, Record};

/// What a disk writes whole or not at all.
const SECTOR: usize = 512;

/// The files by name, with their bytes.
pub(super) type Image = Vec<(String, Vec<u8>)>;

/// How much of what was not synced had arrived.
#[derive(Clone, Copy, Debug)]
pub(super) enum Luck {
    /// All of it: the cut is between two calls.
    All,
    Nothing,
    /// Any of it in any order, and of a write any of its sectors.
    Chance,
}

/// The disk after some of the recorded events.
pub(super) struct Disk<'a> {
    record: &'a Record,
    /// How many events have happened.
    pub(super) at: usize,
    files: Vec<Contents>,
    /// Files that are certain to be in the folder.
    listed: Vec<File>,
    /// Made and removed since the folder was synced, in order.
    pending: Vec<usize>,
}

#[derive(Clone, Default)]
struct Contents {
    durable: Vec<u8>,
    /// Writes that were not synced, by their place among the events.
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
            Event::Make { .. } | Event::Remove { .. } => self.pending.push(self.at),
            Event::SyncFolder => {
                for change in std::mem::take(&mut self.pending) {
                    list(&mut self.listed, &self.record.events[change]);
                }
            }
            Event::Write { file, .. } | Event::Resize { file, .. } => self.files[*file].pending.push(self.at),
            Event::Sync { file, began } => {
                let contents = &mut self.files[*file];
                let (covered, later) = contents.pending.iter().partition(|write| **write < *began);
                contents.pending = later;
                let covered: Vec<usize> = covered;
                for write in covered {
                    apply(&mut contents.durable, &self.record.events[write], &mut |_| true);
                }
            }
            Event::Answer { .. } => {}
        }
        self.at += 1;
    }

    /// What a cut at this moment leaves.
    pub(super) fn image(&self, luck: Luck, rng: &mut StdRng) -> Image {
        let mut listed = self.listed.clone();
        // A file system keeps the order of what happens to a folder.
        let arrived = match luck {
            Luck::All => self.pending.len(),
            Luck::Nothing => 0,
            Luck::Chance => rng.random_range(0..=self.pending.len()),
        };
        for change in &self.pending[..arrived] {
            list(&mut listed, &self.record.events[*change]);
        }
        listed.iter().map(|file| (self.record.names[*file].clone(), self.contents(*file, luck, rng))).collect()
    }

    fn contents(&self, file: File, luck: Luck, rng: &mut StdRng) -> Vec<u8> {
        let contents = &self.files[file];
        let mut bytes = contents.durable.clone();
        // Some cuts come early, some late: a fair coin for each of many writes would lose about half of them every time.
        let share = rng.random_range(0..=8);
        for write in &contents.pending {
            let event = &self.record.events[*write];
            match luck {
                Luck::All => apply(&mut bytes, event, &mut |_| true),
                Luck::Nothing => {}
                Luck::Chance if rng.random_range(0..8) >= share => {}
                Luck::Chance if rng.random_ratio(3, 4) => apply(&mut bytes, event, &mut |_| true),
                Luck::Chance => {
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
        Event::Make { file } => listed.push(*file),
        Event::Remove { file } => listed.retain(|known| known != file),
        other => unreachable!("{other:?} changes no folder"),
    }
}

/// Applies those sectors of a write that arrived.
fn apply(bytes: &mut Vec<u8>, event: &Event, arrived: &mut dyn FnMut(usize) -> bool) {
    match event {
        Event::Resize { length, .. } => bytes.resize(*length, 0),
        Event::Write { at, bytes: new, .. } => {
            let mut from = 0;
            while from < new.len() {
                // Up to the next border of a sector of the disk.
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
