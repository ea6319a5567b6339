//! Takes back the operations of a refused request. The other requests of the commit stay recorded.

use std::collections::HashMap;

use domain::{JobId, Label};

use super::JournalHead;
use super::open_journal::{OpenEntry, OpenJournal};

/// The state of a journal and of one entry before an operation.
pub(super) struct Undo {
    job: JobId,
    head: JournalHead,
    was_changed: bool,
    key: Label,
    entry: Option<OpenEntry>,
}

impl Undo {
    /// Remembers the state before an operation with the key.
    pub(super) fn before(journal: &OpenJournal, job: JobId, key: &Label) -> Self {
        Self {
            job,
            head: journal.head.clone(),
            was_changed: journal.is_changed,
            key: key.clone(),
            entry: journal.entries.get(key).cloned(),
        }
    }

    /// Whether the operation adds an entry.
    pub(super) fn is_new(&self) -> bool {
        self.entry.is_none()
    }

    /// Takes the operation back.
    pub(super) fn run(self, journals: &mut HashMap<JobId, OpenJournal>) {
        let journal = journals.entry(self.job).or_default();
        journal.head = self.head;
        journal.is_changed = self.was_changed;
        if self.entry.as_ref().is_none_or(|open| open.entry.seq.is_none()) {
            let consumed = journal.mailbox.iter_mut().filter(|kept| kept.consumed_by.as_ref() == Some(&self.key));
            consumed.for_each(|kept| kept.consumed_by = None);
        }
        match self.entry {
            Some(entry) => drop(journal.entries.insert(self.key, entry)),
            None => drop(journal.entries.remove(&self.key)),
        }
    }
}
