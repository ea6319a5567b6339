//! Watermarks: per queue, a position that every waiting job is behind, as this node last saw it. PostgreSQL only.
//!
//! The index of waiting jobs on PostgreSQL also holds claimed jobs, so that a claim is a heap-only update, and ended jobs until
//! the next vacuum. Without a watermark a claim would scan all of them to reach the first waiting job. A watermark is a hint:
//! it is removed when a job returns to its queue, it stays behind the clock by the time that open transactions may need, and
//! the claim ignores it when nothing is found above it or when the last scan from the beginning is too long ago.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use domain::{Name, TenantId, Time};
use uuid::Uuid;

/// Maximum age of a scan from the beginning. A job that another node puts below the watermark waits at most this long.
const FULL_SCAN_EVERY: Duration = Duration::from_millis(500);
/// One of this many polls for ready queues scans from the beginning.
const FULL_POLL_EVERY: usize = 10;
/// Distance between a watermark and the clock. A transaction that lasts longer commits its jobs below the watermark, where
/// the next scan from the beginning finds them.
const BEHIND_MS: i64 = 1_000;

/// A position in the order of a lane. Every job at or before it was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct JobCursor {
    pub(crate) run_at: Time,
    pub(crate) id: Uuid,
}

impl JobCursor {
    /// The position before any job.
    pub(crate) const BEGINNING: Self = Self { run_at: Time::from_micros(-200_000_000_000_000_000), id: Uuid::nil() };

    /// The highest position that a watermark may have now.
    pub(crate) fn settled(now: Time) -> Self {
        Self { run_at: now.plus_ms(-BEHIND_MS), id: Uuid::nil() }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Watermark {
    pub(crate) cursor: JobCursor,
    /// The time of the last scan from the beginning.
    scanned_at: Instant,
}

impl Watermark {
    pub(crate) fn none() -> Self {
        Self { cursor: JobCursor::BEGINNING, scanned_at: Instant::now() }
    }

    pub(crate) fn is_none(&self) -> bool {
        self.cursor == JobCursor::BEGINNING
    }

    pub(crate) fn raised(self, cursor: JobCursor) -> Self {
        Self { cursor: cursor.max(self.cursor), ..self }
    }
}

#[derive(Clone, Default)]
pub(crate) struct Watermarks {
    by_queue: Arc<Mutex<HashMap<(TenantId, Name), Watermark>>>,
    polls: Arc<AtomicUsize>,
}

impl Watermarks {
    /// The watermark of the queue, or none if it is unknown or due for a scan from the beginning.
    pub(crate) fn of(&self, tenant: TenantId, queue: &Name) -> Watermark {
        let by_queue = self.by_queue.lock().expect("lock poisoned");
        let watermark = by_queue.get(&(tenant, queue.clone())).copied();
        watermark.filter(|watermark| watermark.scanned_at.elapsed() < FULL_SCAN_EVERY).unwrap_or_else(Watermark::none)
    }

    /// The positions from which a poll for ready queues starts: the watermarks, and every few polls the beginning.
    pub(crate) fn for_poll(&self, queues: &[(TenantId, Name)]) -> Vec<JobCursor> {
        let is_full = self.polls.fetch_add(1, Ordering::Relaxed).is_multiple_of(FULL_POLL_EVERY);
        let by_queue = self.by_queue.lock().expect("lock poisoned");
        let cursor =
            |queue| by_queue.get(queue).filter(|_| !is_full).map_or(JobCursor::BEGINNING, |watermark| watermark.cursor);
        queues.iter().map(cursor).collect()
    }

    /// Call this after the claim has committed.
    pub(crate) fn insert(&self, tenant: TenantId, queue: Name, watermark: Watermark) {
        self.by_queue.lock().expect("lock poisoned").insert((tenant, queue), watermark);
    }

    /// A job has returned to the queue.
    pub(crate) fn remove(&self, tenant: TenantId, queue: &Name) {
        self.by_queue.lock().expect("lock poisoned").remove(&(tenant, queue.clone()));
    }

    pub(crate) fn clear(&self) {
        self.by_queue.lock().expect("lock poisoned").clear();
    }
}
