//! Floors: where the waiting jobs of a queue begin, as this node last saw it.
//!
//! On PostgreSQL the index of waiting jobs also holds the claimed ones, so that a claim is a heap-only update, and those
//! that ended, until they are vacuumed. A claim would walk over all of them to reach the first job that waits; from the
//! floor it does not. A floor is a hint: it is dropped when a job comes back to its queue, stays a while behind the
//! clock, where transactions that are still under way may put jobs, and is not used at all when nothing is found above
//! it, or when the last look from the very beginning is too long ago.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use domain::{Name, TenantId, Time};
use uuid::Uuid;

/// What another node put below a floor of ours waits at most this long while there is other work.
const LOOK_FROM_THE_BEGINNING: Duration = Duration::from_millis(500);
/// Of so many looks for news, one is at all that waits.
const WHOLE_LOOK_EVERY: usize = 10;
/// A transaction that lasts longer puts its jobs below the floor, where the next look from the beginning finds them.
const BEHIND_MS: i64 = 1_000;

/// A place in the order of a lane: every job at or before it is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) run_at: Time,
    pub(crate) id: Uuid,
}

impl Place {
    /// Before any job.
    pub(crate) const BEGINNING: Self = Self { run_at: Time::from_micros(-200_000_000_000_000_000), id: Uuid::nil() };

    pub(crate) fn settled(now: Time) -> Self {
        Self { run_at: now.plus_ms(-BEHIND_MS), id: Uuid::nil() }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Floor {
    pub(crate) place: Place,
    /// When everything was last looked at.
    looked: Instant,
}

impl Floor {
    pub(crate) fn none() -> Self {
        Self { place: Place::BEGINNING, looked: Instant::now() }
    }

    pub(crate) fn is_none(&self) -> bool {
        self.place == Place::BEGINNING
    }

    pub(crate) fn raised(self, place: Place) -> Self {
        Self { place: place.max(self.place), ..self }
    }
}

#[derive(Clone, Default)]
pub(crate) struct Floors {
    known: Arc<Mutex<HashMap<(TenantId, Name), Floor>>>,
    looks: Arc<AtomicUsize>,
}

impl Floors {
    pub(crate) fn of(&self, tenant: TenantId, queue: &Name) -> Floor {
        let known = self.known.lock().expect("no holder of floors panics");
        let floor = known.get(&(tenant, queue.clone())).copied();
        floor.filter(|floor| floor.looked.elapsed() < LOOK_FROM_THE_BEGINNING).unwrap_or_else(Floor::none)
    }

    /// Where a look for news of these queues begins: where a claim last saw their jobs, and now and then at the very beginning.
    pub(crate) fn for_news(&self, queues: &[(TenantId, Name)]) -> Vec<Place> {
        let is_whole = self.looks.fetch_add(1, Ordering::Relaxed).is_multiple_of(WHOLE_LOOK_EVERY);
        let known = self.known.lock().expect("no holder of floors panics");
        let place = |queue| known.get(queue).filter(|_| !is_whole).map_or(Place::BEGINNING, |floor| floor.place);
        queues.iter().map(place).collect()
    }

    /// Once the claim that saw it holds.
    pub(crate) fn set(&self, tenant: TenantId, queue: Name, floor: Floor) {
        self.known.lock().expect("no holder of floors panics").insert((tenant, queue), floor);
    }

    /// A job has come back to the queue.
    pub(crate) fn drop_of(&self, tenant: TenantId, queue: &Name) {
        self.known.lock().expect("no holder of floors panics").remove(&(tenant, queue.clone()));
    }

    pub(crate) fn drop_all(&self) {
        self.known.lock().expect("no holder of floors panics").clear();
    }
}
