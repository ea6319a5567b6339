//! What many readers share and may be a little old.
//!
//! It is read when nobody has it. In the second half of the time that it lasts, whoever takes it first has it read again in the
//! background: of a thousand readers a second none waits for what all of them share.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio_util::task::TaskTracker;

use crate::error::StoreError;

/// Cheap to clone.
pub(crate) struct Kept<K, V> {
    inner: Arc<Mutex<Inner<K, V>>>,
    /// Reads that are under way behind answers.
    renewals: TaskTracker,
    lasts: Duration,
    most: usize,
}

struct Inner<K, V> {
    entries: HashMap<K, Entry<V>>,
    /// Moves when something is forgotten: what was read before must not be kept after.
    era: u64,
}

struct Entry<V> {
    read_at: Instant,
    value: Arc<V>,
    renewed: bool,
}

/// Whether an answer rests on what was read before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    Kept,
    ReadNow,
}

pub(crate) enum Look<V> {
    Fresh(Arc<V>),
    /// Still good, and the caller is the one to have it read again.
    Aging(Arc<V>),
    Missing,
}

/// The moment before a read, to be shown when its outcome is kept.
#[derive(Clone, Copy)]
pub(crate) struct Era(u64);

impl<K, V> Clone for Kept<K, V> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), renewals: self.renewals.clone(), lasts: self.lasts, most: self.most }
    }
}

impl<K: Hash + Eq + Clone + Send + 'static, V: Send + Sync + 'static> Kept<K, V> {
    pub(crate) fn new(lasts: Duration, most: usize) -> Self {
        let inner = Arc::new(Mutex::new(Inner { entries: HashMap::new(), era: 0 }));
        Self { inner, renewals: TaskTracker::new(), lasts, most }
    }

    /// What is kept, or else what `read` finds.
    pub(crate) async fn get<R>(&self, key: K, read: impl FnOnce() -> R) -> Result<(Arc<V>, Freshness), StoreError>
    where
        R: Future<Output = Result<V, StoreError>> + Send + 'static,
    {
        let era = self.era();
        match self.look(&key) {
            Look::Fresh(value) => Ok((value, Freshness::Kept)),
            Look::Aging(value) => {
                let (kept, read) = (self.clone(), read());
                self.renew(async move { read.await.map(|value| drop(kept.keep(era, key, value))) });
                Ok((value, Freshness::Kept))
            }
            Look::Missing => Ok((self.keep(era, key, read().await?), Freshness::ReadNow)),
        }
    }

    pub(crate) fn look(&self, key: &K) -> Look<V> {
        let mut inner = self.lock();
        let Some(entry) = inner.entries.get_mut(key) else { return Look::Missing };
        let age = entry.read_at.elapsed();
        if age >= self.lasts {
            return Look::Missing;
        }
        match is_read_again(age, self.lasts, &mut entry.renewed) {
            true => Look::Aging(entry.value.clone()),
            false => Look::Fresh(entry.value.clone()),
        }
    }

    /// Reads behind an answer. Nobody waits for it: a failure is told to those who ask when what is kept has grown too old.
    pub(crate) fn renew(&self, read: impl Future<Output = Result<(), StoreError>> + Send + 'static) {
        self.renewals.spawn(read);
    }

    pub(crate) fn era(&self) -> Era {
        Era(self.lock().era)
    }

    pub(crate) fn keep(&self, era: Era, key: K, value: V) -> Arc<V> {
        let value = Arc::new(value);
        let mut inner = self.lock();
        if inner.entries.len() >= self.most {
            inner.entries.retain(|_, entry| entry.read_at.elapsed() < self.lasts);
        }
        let has_room = inner.entries.len() < self.most || inner.entries.contains_key(&key);
        if has_room && inner.era == era.0 {
            inner.entries.insert(key, Entry { read_at: Instant::now(), value: value.clone(), renewed: false });
        }
        value
    }

    /// This node has changed it.
    pub(crate) fn forget(&self, key: &K) {
        let mut inner = self.lock();
        inner.era += 1;
        inner.entries.remove(key);
    }

    pub(crate) fn forget_all(&self) {
        let mut inner = self.lock();
        inner.era += 1;
        inner.entries.clear();
    }

    fn lock(&self) -> MutexGuard<'_, Inner<K, V>> {
        self.inner.lock().expect("nobody panics with it in hand")
    }
}

/// Whether whoever asks now has it read again: the first in the second half of its time.
fn is_read_again(age: Duration, lasts: Duration, renewed: &mut bool) -> bool {
    age >= lasts / 2 && !std::mem::replace(renewed, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s2_one_reader_renews_what_all_of_them_take() {
        let mut renewed = false;
        let lasts = Duration::from_secs(1);
        let mut asked = |ms: u64| is_read_again(Duration::from_millis(ms), lasts, &mut renewed);
        assert_eq!([asked(0), asked(499)], [false, false], "it is fresh");
        assert_eq!([asked(500), asked(500), asked(999)], [true, false, false], "one is enough");
    }

    #[tokio::test]
    async fn s2_what_is_aging_is_answered_at_once_and_read_again_behind_the_answer() {
        let kept = Kept::new(Duration::from_secs(200), 10);
        let (value, freshness) = kept.get("queue", || async { Ok(1) }).await.expect("is read");
        assert_eq!((*value, freshness), (1, Freshness::ReadNow));
        let age = |s| Instant::now().checked_sub(Duration::from_secs(s)).expect("the machine has been up for so long");
        kept.lock().entries.get_mut("queue").expect("is kept").read_at = age(100);
        let (value, freshness) = kept.get("queue", || async { Ok(2) }).await.expect("is kept");
        assert_eq!((*value, freshness), (1, Freshness::Kept));
        tokio::task::yield_now().await;
        let (value, freshness) = kept.get("queue", || async { Ok(3) }).await.expect("is kept");
        assert_eq!((*value, freshness), (2, Freshness::Kept), "somebody read it meanwhile");
        kept.lock().entries.get_mut("queue").expect("is kept").read_at = age(200);
        let (value, freshness) = kept.get("queue", || async { Ok(4) }).await.expect("is read");
        assert_eq!((*value, freshness), (4, Freshness::ReadNow), "nobody takes what is too old");
    }

    #[test]
    fn s2_what_was_read_before_a_change_is_not_kept_after_it() {
        let kept = Kept::new(Duration::MAX, 10);
        let before = kept.era();
        kept.forget(&"queue");
        kept.keep(before, "queue", 1);
        assert!(matches!(kept.look(&"queue"), Look::Missing));
    }
}
