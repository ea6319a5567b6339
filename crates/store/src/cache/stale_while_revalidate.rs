//! A stale-while-revalidate cache for values that many readers share and that may be slightly old.
//!
//! A miss reads the value. In the second half of an entry's TTL the first reader gets the cached value and starts a
//! refresh in the background, so with a steady stream of readers none of them waits.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio_util::task::TaskTracker;

use crate::error::StoreError;

/// The cache. Clones share their entries.
pub(crate) struct StaleWhileRevalidate<K, V> {
    inner: Arc<Mutex<CacheState<K, V>>>,
    /// Background refreshes.
    refreshes: TaskTracker,
    ttl: Duration,
    max_entries: usize,
}

struct CacheState<K, V> {
    entries: HashMap<K, CacheEntry<V>>,
    /// Incremented by every invalidation. A value read before an invalidation must not be inserted after it.
    generation: u64,
}

struct CacheEntry<V> {
    read_at: Instant,
    value: Arc<V>,
    refreshing: bool,
}

/// Whether a value came from the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheStatus {
    Hit,
    Miss,
}

/// The result of a lookup.
pub(crate) enum Lookup<V> {
    Fresh(Arc<V>),
    /// Still valid, but the caller must start a refresh.
    Stale(Arc<V>),
    Missing,
}

/// The generation before a read. `insert` takes it to detect an invalidation during the read.
#[derive(Clone, Copy)]
pub(crate) struct Generation(u64);

impl<K, V> Clone for StaleWhileRevalidate<K, V> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            refreshes: self.refreshes.clone(),
            ttl: self.ttl,
            max_entries: self.max_entries,
        }
    }
}

impl<K: Hash + Eq + Clone + Send + 'static, V: Send + Sync + 'static> StaleWhileRevalidate<K, V> {
    /// Creates a cache of at most `max_entries` entries.
    pub(crate) fn new(ttl: Duration, max_entries: usize) -> Self {
        let inner = Arc::new(Mutex::new(CacheState { entries: HashMap::new(), generation: 0 }));
        Self { inner, refreshes: TaskTracker::new(), ttl, max_entries }
    }

    /// Returns the cached value, or calls `read` and caches its result.
    pub(crate) async fn get<R>(&self, key: K, read: impl FnOnce() -> R) -> Result<(Arc<V>, CacheStatus), StoreError>
    where
        R: Future<Output = Result<V, StoreError>> + Send + 'static,
    {
        let generation = self.generation();
        match self.lookup(&key) {
            Lookup::Fresh(value) => Ok((value, CacheStatus::Hit)),
            Lookup::Stale(value) => {
                let (cached, read) = (self.clone(), read());
                self.refresh(async move { read.await.map(|value| drop(cached.insert(generation, key, value))) });
                Ok((value, CacheStatus::Hit))
            }
            Lookup::Missing => Ok((self.insert(generation, key, read().await?), CacheStatus::Miss)),
        }
    }

    /// Looks up a key without reading it.
    pub(crate) fn lookup(&self, key: &K) -> Lookup<V> {
        let mut inner = self.lock();
        let Some(entry) = inner.entries.get_mut(key) else { return Lookup::Missing };
        let age = entry.read_at.elapsed();
        if age >= self.ttl {
            return Lookup::Missing;
        }
        match should_refresh(age, self.ttl, &mut entry.refreshing) {
            true => Lookup::Stale(entry.value.clone()),
            false => Lookup::Fresh(entry.value.clone()),
        }
    }

    /// Runs a refresh in the background. Its error is ignored: once the entry has expired, the next reader reads the
    /// value itself and gets the error.
    pub(crate) fn refresh(&self, read: impl Future<Output = Result<(), StoreError>> + Send + 'static) {
        self.refreshes.spawn(read);
    }

    /// Returns the current generation. Take it before the read whose result is inserted.
    pub(crate) fn generation(&self) -> Generation {
        Generation(self.lock().generation)
    }

    /// Caches a value unless the cache was invalidated since `generation` or is full, and returns it.
    pub(crate) fn insert(&self, generation: Generation, key: K, value: V) -> Arc<V> {
        let value = Arc::new(value);
        let mut inner = self.lock();
        if inner.entries.len() >= self.max_entries {
            inner.entries.retain(|_, entry| entry.read_at.elapsed() < self.ttl);
        }
        let has_capacity = inner.entries.len() < self.max_entries || inner.entries.contains_key(&key);
        if has_capacity && inner.generation == generation.0 {
            inner.entries.insert(key, CacheEntry { read_at: Instant::now(), value: value.clone(), refreshing: false });
        }
        value
    }

    /// Removes an entry that this node has changed.
    pub(crate) fn invalidate(&self, key: &K) {
        let mut inner = self.lock();
        inner.generation += 1;
        inner.entries.remove(key);
    }

    /// Removes all entries.
    pub(crate) fn invalidate_all(&self) {
        let mut inner = self.lock();
        inner.generation += 1;
        inner.entries.clear();
    }

    fn lock(&self) -> MutexGuard<'_, CacheState<K, V>> {
        self.inner.lock().expect("lock poisoned")
    }
}

/// Returns true for the first lookup in the second half of the entry's TTL.
fn should_refresh(age: Duration, ttl: Duration, refreshing: &mut bool) -> bool {
    age >= ttl / 2 && !std::mem::replace(refreshing, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement S2.
    #[test]
    fn a_stale_entry_is_refreshed_by_one_reader() {
        let mut refreshing = false;
        let ttl = Duration::from_secs(1);
        let mut refreshes = |ms: u64| should_refresh(Duration::from_millis(ms), ttl, &mut refreshing);
        assert_eq!([refreshes(0), refreshes(499)], [false, false], "the entry is fresh");
        assert_eq!([refreshes(500), refreshes(500), refreshes(999)], [true, false, false], "one refresh is enough");
    }

    /// Requirement S2.
    #[tokio::test]
    async fn a_stale_entry_is_served_and_refreshed_in_the_background() {
        let cached = StaleWhileRevalidate::new(Duration::from_secs(200), 10);
        let (value, status) = cached.get("queue", || async { Ok(1) }).await.expect("is read");
        assert_eq!((*value, status), (1, CacheStatus::Miss));
        let age = |s| Instant::now().checked_sub(Duration::from_secs(s)).expect("the machine has been up for so long");
        cached.lock().entries.get_mut("queue").expect("is cached").read_at = age(100);
        let (value, status) = cached.get("queue", || async { Ok(2) }).await.expect("is cached");
        assert_eq!((*value, status), (1, CacheStatus::Hit));
        tokio::task::yield_now().await;
        let (value, status) = cached.get("queue", || async { Ok(3) }).await.expect("is cached");
        assert_eq!((*value, status), (2, CacheStatus::Hit), "the refresh replaced the value");
        cached.lock().entries.get_mut("queue").expect("is cached").read_at = age(200);
        let (value, status) = cached.get("queue", || async { Ok(4) }).await.expect("is read");
        assert_eq!((*value, status), (4, CacheStatus::Miss), "an expired value is not used");
    }

    /// Requirement S2.
    #[test]
    fn a_value_read_before_an_invalidation_is_not_cached() {
        let cached = StaleWhileRevalidate::new(Duration::MAX, 10);
        let before = cached.generation();
        cached.invalidate(&"queue");
        cached.insert(before, "queue", 1);
        assert!(matches!(cached.lookup(&"queue"), Lookup::Missing));
    }
}
