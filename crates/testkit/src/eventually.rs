//! Bounded waits. Tests must not sleep for a fixed time: they wait for a condition with [`eventually`] where they can
//! only poll, and for a notification with [`before_timeout`] where the API offers one.

use std::time::{Duration, Instant};

/// Timeout of every wait. It is long because test machines are slow at times, and no wait measures speed.
pub const TIMEOUT: Duration = Duration::from_secs(180);
const POLL_INTERVAL: Duration = Duration::from_millis(15);

/// Polls until the probe returns a value, and returns it. Panics with the name of the awaited condition after
/// [`TIMEOUT`].
pub async fn eventually<T>(awaited: &str, probe: impl AsyncFnMut() -> Option<T>) -> T {
    let Some(value) = try_eventually(TIMEOUT, probe).await else { panic!("timed out after {TIMEOUT:?}: {awaited}") };
    value
}

/// Polls until the condition holds. Panics with the name of the awaited condition after [`TIMEOUT`].
pub async fn wait_until(awaited: &str, mut condition: impl AsyncFnMut() -> bool) {
    eventually(awaited, async || condition().await.then_some(())).await;
}

/// Same as [`eventually`] with another timeout. Returns `None` when it passes.
pub async fn try_eventually<T>(timeout: Duration, mut probe: impl AsyncFnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + timeout;
    loop {
        let value = probe().await;
        if value.is_some() || Instant::now() > deadline {
            return value;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Awaits a future that completes by a notification. Panics with the name of the awaited event after [`TIMEOUT`].
pub async fn before_timeout<T>(awaited: &str, event: impl Future<Output = T>) -> T {
    let Ok(value) = tokio::time::timeout(TIMEOUT, event).await else {
        panic!("timed out after {TIMEOUT:?}: {awaited}")
    };
    value
}

/// Repeats a call until it succeeds, and returns its result. Panics when an error is not transient, or after
/// [`TIMEOUT`].
///
/// The call is not an `AsyncFnMut`, because spawned tasks use this function and futures with such a bound are not
/// `Send`.
pub async fn retry<T, E: std::fmt::Debug, F: Future<Output = Result<T, E>>>(
    is_transient: impl Fn(&E) -> bool,
    mut call: impl FnMut() -> F,
) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match call().await {
            Ok(value) => return value,
            Err(error) => assert!(is_transient(&error) && Instant::now() < deadline, "the call failed: {error:?}"),
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
