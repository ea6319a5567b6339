//! The state that every handler shares.

use std::ops::Deref;
use std::sync::Arc;

use domain::RetryPolicy;
use domain::limits::{ARTIFACT_BYTES, DEFAULT_MAX_ATTEMPTS, PAYLOAD_BYTES};
use engine::Engine;
use store::Store;
use store::queue::artifacts::Blobs;
use tokio_util::sync::CancellationToken;

use crate::access::host::HostCheck;
use crate::access::session::CookieKey;
use crate::connection_places::ConnectionLimits;
use crate::http::v1::queue::attempt_spans::AttemptSpans;
use crate::signals::streams::Streams;
use crate::tls::Tls;

/// Cheap to clone: every request clones it several times.
#[derive(Clone)]
pub struct AppState(Arc<Shared>);

#[derive(Clone)]
pub struct Shared {
    pub store: Store,
    pub engine: Arc<Engine>,
    pub blobs: Arc<Blobs>,
    pub options: Arc<ServerOptions>,
    /// Spans of traced jobs that workers of this node run.
    pub spans: AttemptSpans,
    /// Subscriptions to live job signals.
    pub streams: Streams,
    /// Canceled at shutdown: long-polls then answer at once with what they have.
    pub stopping: CancellationToken,
}

#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Maximum payload of one job, in bytes of JSON.
    pub payload_bytes: usize,
    /// Maximum size of one artifact, in bytes.
    pub artifact_bytes: u64,
    pub host_check: HostCheck,
    /// Retry settings of a new trigger that does not set its own.
    pub trigger_defaults: TriggerDefaults,
    /// Key that signs the cookies of page sessions.
    pub cookies: CookieKey,
    /// The origin of the dashboard behind a proxy, as browsers send it: `https://windlass.example.com`.
    pub public_origin: Option<String>,
    /// Serves plain HTTP if None.
    pub tls: Option<Tls>,
    pub connections: ConnectionLimits,
}

/// Default retry settings of trigger runs. Copied into a trigger when it is created.
#[derive(Clone, Copy, Debug)]
pub struct TriggerDefaults {
    pub retry: RetryPolicy,
    pub max_attempts: i32,
}

impl Default for TriggerDefaults {
    fn default() -> Self {
        Self { retry: RetryPolicy::QUEUE_DEFAULT, max_attempts: DEFAULT_MAX_ATTEMPTS }
    }
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            payload_bytes: PAYLOAD_BYTES,
            artifact_bytes: ARTIFACT_BYTES,
            host_check: HostCheck::Loopback,
            trigger_defaults: TriggerDefaults::default(),
            cookies: CookieKey::for_this_process(),
            public_origin: None,
            tls: None,
            connections: ConnectionLimits::default(),
        }
    }
}

impl Deref for AppState {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl AppState {
    pub fn new(engine: Arc<Engine>, blobs: Arc<Blobs>, options: ServerOptions) -> Self {
        let store = engine.store().clone();
        let streams = Streams::new(store.clone());
        let background = streams.clone();
        engine.spawn_until_stopped(async move { background.run().await });
        let (options, stopping) = (Arc::new(options), CancellationToken::new());
        Self(Arc::new(Shared { store, engine, blobs, options, spans: AttemptSpans::default(), streams, stopping }))
    }

    /// Returns a copy that ends its long-polls when `stopping` is canceled.
    pub(crate) fn with_shutdown(self, stopping: CancellationToken) -> Self {
        Self(Arc::new(Shared { stopping, ..Shared::clone(&self) }))
    }
}
