//! Row ids of claimed jobs on SQLite, so that the end of a job need not search for its row.
//!
//! A row keeps its id while it lives (a `vacuum` keeps it too, because the table has an index), and only rows of a claim carry
//! the claim's id. An entry is therefore right as long as that claim is on the row, which `FINISH_TAKEN` checks. Any entry may
//! be missing, and a stale entry does no harm.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex};

use domain::{Epoch, JobId, TenantId, WorkerId};
use uuid::Uuid;

/// Maximum number of entries of a generation. The cache keeps two generations.
const GENERATION_ENTRIES: usize = 16_384;

/// A claimed job without subject, process, keys, webhook and origin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClaimedRow {
    pub(crate) row: i64,
    pub(crate) claim: Uuid,
    pub(crate) tenant: TenantId,
    pub(crate) worker: WorkerId,
    pub(crate) epoch: Epoch,
    pub(crate) lane: i64,
    pub(crate) attempt: i32,
}

#[derive(Clone, Default)]
pub(crate) struct ClaimedRowCache {
    jobs: Arc<Mutex<Generations>>,
}

type ByJob = HashMap<JobId, ClaimedRow, BuildHasherDefault<UuidHasher>>;

#[derive(Default)]
struct Generations {
    young: ByJob,
    old: ByJob,
}

/// Hashes UUIDs that this program generated. They are random already, and no caller can choose ids that collide.
#[derive(Default)]
struct UuidHasher(u64);

impl Hasher for UuidHasher {
    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            // Ids differ in their last bytes. A hash table uses both ends of the hash.
            self.0 = (self.0.rotate_left(26) ^ u64::from_be_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
    }

    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
}

impl ClaimedRowCache {
    /// Call this after the claim has committed.
    pub(crate) fn insert(&self, jobs: Vec<(JobId, ClaimedRow)>) {
        if jobs.is_empty() {
            return;
        }
        let mut generations = self.jobs.lock().expect("lock poisoned");
        if generations.young.len() + jobs.len() > GENERATION_ENTRIES {
            generations.old = std::mem::take(&mut generations.young);
        }
        generations.young.extend(jobs);
    }

    /// Removes the entries of these jobs that belong to this worker and epoch. Returns them grouped by claim and lane, and the
    /// jobs without such an entry.
    pub(crate) fn remove(
        &self,
        of: (TenantId, WorkerId, Epoch),
        jobs: Vec<JobId>,
    ) -> (Vec<Vec<(JobId, ClaimedRow)>>, Vec<JobId>) {
        let mut generations = self.jobs.lock().expect("lock poisoned");
        let mut groups: BTreeMap<(Uuid, i64), Vec<(JobId, ClaimedRow)>> = BTreeMap::new();
        let mut others = Vec::new();
        for job in jobs {
            let taken = generations.young.remove(&job).or_else(|| generations.old.remove(&job));
            match taken.filter(|taken| (taken.tenant, taken.worker, taken.epoch) == of) {
                Some(taken) => groups.entry((taken.claim, taken.lane)).or_default().push((job, taken)),
                None => others.push(job),
            }
        }
        (groups.into_values().collect(), others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKER: WorkerId = WorkerId::new(Uuid::from_u128(2));

    fn taken(row: i64, epoch: i64) -> ClaimedRow {
        let (claim, worker) = (Uuid::from_u128(1), WORKER);
        ClaimedRow { row, claim, tenant: TenantId(3), worker, epoch: Epoch(epoch), lane: 4, attempt: 1 }
    }

    fn job(number: usize) -> JobId {
        JobId::new(Uuid::from_u128(number as u128))
    }

    /// Requirement X3.
    #[test]
    fn a_cached_row_of_another_claim_is_not_returned() {
        let cache = ClaimedRowCache::default();
        let other = ClaimedRow { claim: Uuid::from_u128(9), ..taken(12, 1) };
        cache.insert(vec![(job(0), taken(10, 1)), (job(1), taken(11, 2)), (job(2), other)]);
        let of = (TenantId(3), WORKER, Epoch(1));
        let (given, others) = cache.remove(of, (0..4).map(job).collect());
        let mut rows: Vec<Vec<i64>> =
            given.iter().map(|taken| taken.iter().map(|(_, taken)| taken.row).collect()).collect();
        rows.sort();
        assert_eq!(rows, [[10], [12]], "each claim by itself");
        assert_eq!(others, [job(1), job(3)], "one was claimed again, one was never seen");
        assert_eq!(cache.remove(of, vec![job(0)]).1, [job(0)], "and nothing is given twice");
    }

    #[test]
    fn the_claimed_row_cache_evicts_the_oldest_entries() {
        let cache = ClaimedRowCache::default();
        for number in 0..3 * GENERATION_ENTRIES {
            cache.insert(vec![(job(number), taken(number as i64, 1))]);
        }
        let of = (TenantId(3), WORKER, Epoch(1));
        let (given, others) = cache.remove(of, (0..3 * GENERATION_ENTRIES).map(job).collect());
        assert_eq!(others, (0..GENERATION_ENTRIES).map(job).collect::<Vec<_>>());
        assert_eq!(given[0].len(), 2 * GENERATION_ENTRIES);
    }
}
