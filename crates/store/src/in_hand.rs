//! Jobs in workers' hands, as their claims saw them: on SQLite an end need not look for their rows.
//!
//! A row keeps its id for as long as it lives (through a `vacuum` too, where its table has an index), and the id of a claim
//! stands on the rows that it took and on no others. So what is remembered here is right if that claim still stands on the row,
//! and the row itself is asked for that (`FINISH_TAKEN`). Anything may be forgotten, and what is remembered in vain does no harm.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex};

use domain::{Epoch, JobId, TenantId, WorkerId};
use uuid::Uuid;

/// Jobs that are remembered, where so many are in hand; up to twice as many may be.
const REMEMBERED: usize = 16_384;

/// A job without subject, process, keys, webhook or origin, as it was taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) row: i64,
    pub(crate) claim: Uuid,
    pub(crate) tenant: TenantId,
    pub(crate) worker: WorkerId,
    pub(crate) epoch: Epoch,
    pub(crate) lane: i64,
    pub(crate) attempt: i32,
}

#[derive(Clone, Default)]
pub(crate) struct InHand {
    jobs: Arc<Mutex<Generations>>,
}

type ByJob = HashMap<JobId, Taken, BuildHasherDefault<OwnDice>>;

#[derive(Default)]
struct Generations {
    young: ByJob,
    old: ByJob,
}

/// The dice that are in an id already: this program threw them itself, so nobody can have chosen ids that meet.
#[derive(Default)]
struct OwnDice(u64);

impl Hasher for OwnDice {
    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            // What differs between ids is in the last bytes; a table looks at both ends of the number.
            self.0 = (self.0.rotate_left(26) ^ u64::from_be_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
    }

    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
}

impl InHand {
    /// Once the claim holds.
    pub(crate) fn remember(&self, jobs: Vec<(JobId, Taken)>) {
        if jobs.is_empty() {
            return;
        }
        let mut kept = self.jobs.lock().expect("nobody panics with them in hand");
        if kept.young.len() + jobs.len() > REMEMBERED {
            kept.old = std::mem::take(&mut kept.young);
        }
        kept.young.extend(jobs);
    }

    /// Sorts jobs that are said to be in this worker's hands, in this epoch: those that are remembered so, by claim and lane, and
    /// the others. What is given is forgotten.
    pub(crate) fn give(
        &self,
        of: (TenantId, WorkerId, Epoch),
        jobs: Vec<JobId>,
    ) -> (Vec<Vec<(JobId, Taken)>>, Vec<JobId>) {
        let mut kept = self.jobs.lock().expect("nobody panics with them in hand");
        let mut alike: BTreeMap<(Uuid, i64), Vec<(JobId, Taken)>> = BTreeMap::new();
        let mut others = Vec::new();
        for job in jobs {
            let taken = kept.young.remove(&job).or_else(|| kept.old.remove(&job));
            match taken.filter(|taken| (taken.tenant, taken.worker, taken.epoch) == of) {
                Some(taken) => alike.entry((taken.claim, taken.lane)).or_default().push((job, taken)),
                None => others.push(job),
            }
        }
        (alike.into_values().collect(), others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKER: WorkerId = WorkerId::new(Uuid::from_u128(2));

    fn taken(row: i64, epoch: i64) -> Taken {
        let (claim, worker) = (Uuid::from_u128(1), WORKER);
        Taken { row, claim, tenant: TenantId(3), worker, epoch: Epoch(epoch), lane: 4, attempt: 1 }
    }

    fn job(number: usize) -> JobId {
        JobId::new(Uuid::from_u128(number as u128))
    }

    #[test]
    fn x3_what_is_remembered_of_another_claim_is_not_given() {
        let hands = InHand::default();
        let other = Taken { claim: Uuid::from_u128(9), ..taken(12, 1) };
        hands.remember(vec![(job(0), taken(10, 1)), (job(1), taken(11, 2)), (job(2), other)]);
        let of = (TenantId(3), WORKER, Epoch(1));
        let (given, others) = hands.give(of, (0..4).map(job).collect());
        let mut rows: Vec<Vec<i64>> =
            given.iter().map(|taken| taken.iter().map(|(_, taken)| taken.row).collect()).collect();
        rows.sort();
        assert_eq!(rows, [[10], [12]], "each claim by itself");
        assert_eq!(others, [job(1), job(3)], "one was claimed again, one was never seen");
        assert_eq!(hands.give(of, vec![job(0)]).1, [job(0)], "and nothing is given twice");
    }

    #[test]
    fn it_forgets_the_oldest() {
        let hands = InHand::default();
        for number in 0..3 * REMEMBERED {
            hands.remember(vec![(job(number), taken(number as i64, 1))]);
        }
        let of = (TenantId(3), WORKER, Epoch(1));
        let (given, others) = hands.give(of, (0..3 * REMEMBERED).map(job).collect());
        assert_eq!(others, (0..REMEMBERED).map(job).collect::<Vec<_>>());
        assert_eq!(given[0].len(), 2 * REMEMBERED);
    }
}
