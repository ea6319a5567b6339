//! Adaptive concurrency limit per endpoint (additive increase, multiplicative decrease). Each node learns its own limits in
//! memory, starting from the default after a restart.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use domain::triggers::circuit::ConcurrencyLimit;

/// The limits of endpoints that have reached their concurrency at least once. Other endpoints use the default.
#[derive(Default)]
pub(crate) struct EndpointLimiter {
    endpoints: Mutex<HashMap<i64, EndpointState>>,
}

#[derive(Clone, Copy, Default)]
struct EndpointState {
    limit: ConcurrencyLimit,
    /// The current limit is fully used. Below the limit, a success does not show that the receiver can take more.
    saturated: bool,
}

impl EndpointLimiter {
    fn lock(&self) -> MutexGuard<'_, HashMap<i64, EndpointState>> {
        self.endpoints.lock().expect("lock poisoned")
    }

    /// Returns the endpoint's current limit.
    pub(super) fn of(&self, endpoint: i64) -> ConcurrencyLimit {
        self.lock().get(&endpoint).copied().unwrap_or_default().limit
    }

    /// Records that the endpoint's limit is fully used.
    pub(super) fn saturated(&self, endpoint: i64) {
        self.lock().entry(endpoint).or_default().saturated = true;
    }

    /// Records a success. Raises the limit by one step if it was fully used, and then waits until the new limit is fully
    /// used, too.
    pub(super) fn succeeded(&self, endpoint: i64) {
        if let Some(state) = self.lock().get_mut(&endpoint).filter(|state| state.saturated) {
            *state = EndpointState { limit: state.limit.increased(), saturated: false };
        }
    }

    /// Records a failure. Lowers the limit and removes the entry when it is back at the default.
    pub(super) fn failed(&self, endpoint: i64) {
        let mut endpoints = self.lock();
        let Some(limit) = endpoints.get(&endpoint).map(|state| state.limit.halved()) else { return };
        if limit == ConcurrencyLimit::default() {
            endpoints.remove(&endpoint);
        } else {
            endpoints.insert(endpoint, EndpointState { limit, saturated: false });
        }
    }
}
