//! Thundering-herd control for claims: of many waiters for the same jobs, a few claim at a time.
//!
//! A notification wakes every waiter of a queue. An empty result satisfies every waiter with the same filter that was
//! notified before the claim began. So a thousand waiting workers do not make a thousand claims for each job.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use domain::limits::{CLAIM_GATE_EXTRA_PERMITS, CLAIM_GATE_PERMITS};
use domain::{Label, Name, TenantId};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::access::tokens::Serves;

/// The jobs that a worker claims. Two workers with equal filters find the same jobs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClaimFilter {
    pub queues: Vec<Name>,
    /// `None` means all.
    pub kinds: Option<Vec<Name>>,
    /// `None` means all.
    pub affinities: Option<Vec<Label>>,
}

/// Waiters with equal keys share a gate.
type GateKey = (TenantId, Option<Serves>, ClaimFilter);

/// The gates of this node, one per distinct filter. Cheap to clone.
#[derive(Clone, Default)]
pub struct ClaimGate(Arc<Mutex<HashMap<GateKey, Members>>>);

struct Members {
    gate: Arc<Gate>,
    count: usize,
}

struct Gate {
    /// Number of attempts so far. The value after an attempt's own increment is its sequence number.
    attempts: AtomicU64,
    /// Highest sequence number of an attempt that found nothing.
    last_miss: AtomicU64,
    /// Limits concurrent attempts. Grows while attempts find jobs.
    permits: Semaphore,
    /// Permits added beyond `CLAIM_GATE_PERMITS`.
    extra_permits: AtomicUsize,
}

impl Gate {
    fn new() -> Self {
        let permits = Semaphore::new(CLAIM_GATE_PERMITS);
        Self { attempts: AtomicU64::new(0), last_miss: AtomicU64::new(0), permits, extra_permits: AtomicUsize::new(0) }
    }

    /// Adds an extra permit, up to `CLAIM_GATE_EXTRA_PERMITS`.
    fn grow(&self) {
        let incremented =
            |extra_permits: usize| (extra_permits < CLAIM_GATE_EXTRA_PERMITS).then_some(extra_permits + 1);
        if self.extra_permits.fetch_update(Ordering::SeqCst, Ordering::SeqCst, incremented).is_ok() {
            self.permits.add_permits(1);
        }
    }

    /// Retires the permit if extra permits were added; otherwise returns it.
    fn shrink(&self, permit: SemaphorePermit<'_>) {
        let decremented = |extra_permits: usize| extra_permits.checked_sub(1);
        if self.extra_permits.fetch_update(Ordering::SeqCst, Ordering::SeqCst, decremented).is_ok() {
            permit.forget();
        }
    }
}

impl ClaimGate {
    /// Registers a waiter at the gate of its filter. The waiter leaves when it is dropped.
    pub fn join(&self, tenant: TenantId, serves: Option<Serves>, claim_filter: ClaimFilter) -> Waiter {
        let key = (tenant, serves, claim_filter);
        let mut claim_gate = self.0.lock().expect("lock poisoned");
        let new = || Members { gate: Arc::new(Gate::new()), count: 0 };
        let members = claim_gate.entry(key.clone()).or_insert_with(new);
        members.count += 1;
        Waiter { claim_gate: self.clone(), key, gate: members.gate.clone() }
    }
}

/// A registered waiter.
pub struct Waiter {
    claim_gate: ClaimGate,
    key: GateKey,
    gate: Arc<Gate>,
}

impl Waiter {
    /// Waits for a permit to claim. To be called after each notification. Returns `None` if an attempt that began
    /// after this call found nothing: it also covers this waiter.
    pub async fn acquire(&self) -> Option<Attempt<'_>> {
        let attempts_before = self.gate.attempts.load(Ordering::SeqCst);
        let permit = self.gate.permits.acquire().await.ok()?;
        if self.gate.last_miss.load(Ordering::SeqCst) > attempts_before {
            self.gate.shrink(permit);
            return None;
        }
        let sequence = self.gate.attempts.fetch_add(1, Ordering::SeqCst) + 1;
        Some(Attempt { gate: &self.gate, sequence, permit })
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut claim_gate = self.claim_gate.0.lock().expect("lock poisoned");
        let Some(members) = claim_gate.get_mut(&self.key) else { return };
        members.count -= 1;
        if members.count == 0 {
            claim_gate.remove(&self.key);
        }
    }
}

/// A claim attempt under way. Dropping it without [`miss`](Self::miss) or [`hit`](Self::hit) has no effect on other
/// waiters.
pub struct Attempt<'l> {
    gate: &'l Gate,
    sequence: u64,
    permit: SemaphorePermit<'l>,
}

impl Attempt<'_> {
    /// The attempt found nothing. Waiters that were notified before it began return `None`.
    pub fn miss(self) {
        self.gate.last_miss.fetch_max(self.sequence, Ordering::SeqCst);
        self.gate.shrink(self.permit);
    }

    /// The attempt found jobs, so more may remain. Adds a permit: two attempts follow this one.
    pub fn hit(self) {
        self.gate.grow();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use proptest::prelude::*;
    use tokio::task::{LocalSet, yield_now};

    use super::*;
    use crate::db::notifier::{Notifier, Topic};

    fn claim_filter(queue: &str) -> ClaimFilter {
        ClaimFilter { queues: vec![Name::new(queue).expect("a name")], kinds: None, affinities: None }
    }

    fn ready() -> Topic {
        Topic::Ready(TenantId::DEFAULT, Name::new("q").expect("a name"))
    }

    /// A queue and its waiters. Each waiter's attempt yields to the runtime a given number of times.
    #[derive(Default)]
    struct World {
        notifier: Notifier,
        claim_gate: ClaimGate,
        jobs: Cell<usize>,
        done: Cell<usize>,
        attempts_made: Cell<usize>,
        in_progress: Cell<usize>,
        max_in_progress: Cell<usize>,
    }

    impl World {
        async fn wait_and_claim(self: Rc<Self>, pause: usize) {
            let listener = self.notifier.subscribe([ready()]);
            let gate = self.claim_gate.join(TenantId::DEFAULT, None, claim_filter("q"));
            loop {
                listener.notified().await;
                let Some(attempt) = gate.acquire().await else { continue };
                self.attempts_made.set(self.attempts_made.get() + 1);
                self.in_progress.set(self.in_progress.get() + 1);
                self.max_in_progress.set(self.max_in_progress.get().max(self.in_progress.get()));
                // A job present at the start is taken at once, but the attempt reports it only at the end.
                let found = self.jobs.get() > 0;
                self.jobs.set(self.jobs.get() - usize::from(found));
                for _ in 0..pause {
                    yield_now().await;
                }
                self.in_progress.set(self.in_progress.get() - 1);
                if found {
                    self.done.set(self.done.get() + 1);
                    return attempt.hit();
                }
                attempt.miss();
            }
        }

        fn add(&self, jobs: usize) {
            self.jobs.set(self.jobs.get() + jobs);
            self.notifier.notify_local(&ready());
        }
    }

    /// Yields until no task can progress without another notification.
    async fn settle() {
        for _ in 0..2_000 {
            yield_now().await;
        }
    }

    async fn with_waiting(pauses: &[usize], then: impl AsyncFnOnce(&World)) {
        let world = Rc::new(World::default());
        LocalSet::new()
            .run_until(async {
                for pause in pauses {
                    tokio::task::spawn_local(world.clone().wait_and_claim(*pause));
                }
                settle().await;
                then(&world).await;
            })
            .await;
    }

    /// Requirement Q6.
    #[tokio::test]
    async fn one_new_job_wakes_only_a_few_waiting_claims() {
        with_waiting(&[1; 500], async |world| {
            world.add(1);
            settle().await;
            assert_eq!(world.done.get(), 1);
            assert!(world.attempts_made.get() <= 2 * CLAIM_GATE_PERMITS + 1, "{} attempts", world.attempts_made.get());
        })
        .await;
    }

    /// Requirement Q6.
    #[tokio::test]
    async fn the_claim_gate_widens_with_hits_and_narrows_again() {
        with_waiting(&[3; 900], async |world| {
            world.add(400);
            settle().await;
            assert_eq!(world.done.get(), 400);
            assert_eq!(world.max_in_progress.take(), CLAIM_GATE_PERMITS + CLAIM_GATE_EXTRA_PERMITS);
            world.attempts_made.take();
            world.add(1);
            settle().await;
            assert_eq!(
                (world.done.get(), world.max_in_progress.get()),
                (401, CLAIM_GATE_PERMITS + 1),
                "the hit added one permit"
            );
            assert!(world.attempts_made.get() <= 2 * CLAIM_GATE_PERMITS + 1, "{} attempts", world.attempts_made.get());
        })
        .await;
    }

    #[test]
    fn a_claim_gate_is_removed_with_its_last_waiter() {
        let claim_gate = ClaimGate::default();
        let of = |queue| claim_gate.join(TenantId::DEFAULT, None, claim_filter(queue));
        let (first, second, other) = (of("q"), of("q"), of("other"));
        assert!(Arc::ptr_eq(&first.gate, &second.gate) && !Arc::ptr_eq(&first.gate, &other.gate));
        drop((first, other));
        assert_eq!(claim_gate.0.lock().expect("it is there").len(), 1);
        drop(second);
        assert!(claim_gate.0.lock().expect("it is there").is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// There is no polling in this test: a job that is announced and not claimed would wait forever.
        /// Requirement Q6.
        #[test]
        fn every_announced_job_is_claimed(
            pauses in prop::collection::vec(0_usize..5, 1..40),
            adds in prop::collection::vec((1_usize..6, 0_usize..12), 1..12),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            runtime.block_on(with_waiting(&pauses, async |world| {
                for (jobs, pause) in &adds {
                    world.add(*jobs);
                    for _ in 0..*pause {
                        yield_now().await;
                    }
                }
                settle().await;
                let added: usize = adds.iter().map(|(jobs, _)| jobs).sum();
                assert_eq!(world.done.get(), added.min(pauses.len()), "of {added} for {}", pauses.len());
            }));
        }
    }
}
