//! Time, ids and dice, brought in from outside so that tests can bend them.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use domain::{JobId, Time};
use uuid::Uuid;

/// Where the store gets its time and its random numbers.
///
/// On PostgreSQL the time is the database's own; only `shift_ms` is added to it.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    shift_ms: Arc<AtomicI64>,
}

impl Clock {
    pub fn system() -> Self {
        Self::default()
    }

    /// Moves this clock, and every copy of it, forward (or back). For tests.
    pub fn advance_ms(&self, millis: i64) {
        self.shift_ms.fetch_add(millis, Ordering::SeqCst);
    }

    pub(crate) fn shift_ms(&self) -> i64 {
        self.shift_ms.load(Ordering::SeqCst)
    }

    /// This machine's time.
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the system clock")]
    pub fn now(&self) -> Time {
        let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let micros = since_epoch.map(|elapsed| elapsed.as_micros() as i64).unwrap_or_default();
        Time::from_micros(micros).plus_ms(self.shift_ms())
    }
}

/// A fresh id that sorts by `now`.
pub fn new_uuid(now: Time) -> Uuid {
    let millis = now.millis().max(0) as u64;
    let mut random = [0u8; 10];
    fill_random(&mut random);
    uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid()
}

/// Fresh job ids in ascending order: jobs of one batch keep the order in which they were given.
pub fn new_job_ids(now: Time, count: usize) -> Vec<JobId> {
    let mut ids: Vec<Uuid> = Vec::with_capacity(count);
    let mut random = vec![0u8; count * 10];
    fill_random(&mut random);
    let millis = now.millis().max(0) as u64;
    for chunk in random.chunks_exact(10) {
        let bytes: &[u8; 10] = chunk.try_into().expect("chunks of ten");
        ids.push(uuid::Builder::from_unix_timestamp_millis(millis, bytes).into_uuid());
    }
    ids.sort_unstable();
    ids.into_iter().map(JobId::new).collect()
}

/// A number from 0 to 1.
pub fn dice() -> f64 {
    let mut bytes = [0u8; 8];
    fill_random(&mut bytes);
    (u64::from_le_bytes(bytes) >> 11) as f64 / (1u64 << 53) as f64
}

pub fn fill_random(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the operating system gives random numbers");
}
