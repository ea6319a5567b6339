//! Time, ids and random numbers.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use domain::{JobId, Time};
use uuid::Uuid;

/// The clock of the store. Tests can move it.
///
/// On PostgreSQL the store uses the database clock and only adds `shift_ms` to it.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    shift_ms: Arc<AtomicI64>,
}

impl Clock {
    pub fn system() -> Self {
        Self::default()
    }

    /// Moves this clock and all its clones forward, or back if `millis` is negative. For tests.
    pub fn advance_ms(&self, millis: i64) {
        self.shift_ms.fetch_add(millis, Ordering::SeqCst);
    }

    pub(crate) fn shift_ms(&self) -> i64 {
        self.shift_ms.load(Ordering::SeqCst)
    }

    /// Returns the time of this machine's clock.
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the system clock")]
    pub fn now(&self) -> Time {
        let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let micros = since_epoch.map(|elapsed| elapsed.as_micros() as i64).unwrap_or_default();
        Time::from_micros(micros).plus_ms(self.shift_ms())
    }
}

/// Returns a new UUIDv7 for the time `now`.
pub fn new_uuid(now: Time) -> Uuid {
    let mut random = [0u8; 10];
    fill_random(&mut random);
    uuid_at(now, random)
}

/// Returns a lower bound of all ids created at `now` or later.
pub(crate) fn uuids_from(now: Time) -> Uuid {
    uuid_at(now, [0; 10])
}

/// Returns new job ids in ascending order, so that the jobs of one batch keep their order.
pub fn new_job_ids(now: Time, count: usize) -> Vec<JobId> {
    let mut random = vec![0u8; count * 10];
    fill_random(&mut random);
    let (chunks, _) = random.as_chunks::<10>();
    let mut ids: Vec<Uuid> = chunks.iter().map(|bytes| uuid_at(now, *bytes)).collect();
    ids.sort_unstable();
    ids.into_iter().map(JobId::new).collect()
}

/// Builds a UUIDv7 whose first twelve random bits are the microseconds within the millisecond (RFC 9562, section 6.2,
/// method 3), so that ids sort by time within a millisecond, too.
fn uuid_at(now: Time, mut random: [u8; 10]) -> Uuid {
    let millis = now.millis().max(0) as u64;
    let part = (now.micros().rem_euclid(1_000) * 4_096 / 1_000) as u16;
    [random[0], random[1]] = part.to_be_bytes();
    uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid()
}

/// Returns a random number in [0, 1).
pub fn random_unit() -> f64 {
    let mut bytes = [0u8; 8];
    fill_random(&mut bytes);
    (u64::from_le_bytes(bytes) >> 11) as f64 / (1u64 << 53) as f64
}

/// Fills the slice with random bytes of the operating system.
pub fn fill_random(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the operating system provides random numbers");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement Q1.
    #[test]
    fn ids_are_uuid_version_7_and_sort_by_microsecond() {
        let ids: Vec<Uuid> =
            (0..3_000).map(|micros| new_uuid(Time::from_micros(1_700_000_000_000_000 + micros))).collect();
        assert!(ids.is_sorted(), "{ids:?}");
        assert!(ids.iter().all(|id| id.get_version_num() == 7 && id.get_variant() == uuid::Variant::RFC4122));
        assert_ne!(new_uuid(Time::from_micros(5)), new_uuid(Time::from_micros(5)));
    }
}
