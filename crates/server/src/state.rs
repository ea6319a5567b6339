//! What every handler can reach.

use std::ops::Deref;
use std::sync::Arc;

use domain::RetryPolicy;
use domain::limits::{ARTIFACT_BYTES, DEFAULT_MAX_ATTEMPTS, PAYLOAD_BYTES};
use engine::Engine;
use store::Store;
use store::artifacts::Blobs;
use tokio_util::sync::CancellationToken;

use crate::host::HostCheck;
use crate::session::CookieKey;
use crate::streams::Streams;
use crate::tls::Tls;

/// Cheap to clone: that is done for every request, more than once.
#[derive(Clone)]
pub struct AppState(Arc<Shared>);

#[derive(Clone)]
pub struct Shared {
    pub store: Store,
    pub engine: Arc<Engine>,
    pub blobs: Arc<Blobs>,
    pub options: Arc<ServerOptions>,
    /// The live signals that are being followed.
    pub streams: Streams,
    /// Once canceled, long-polls answer at once with what they have.
    pub stopping: CancellationToken,
}

#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Payload of one job, in bytes of JSON.
    pub payload_bytes: usize,
    /// One artifact, in bytes.
    pub artifact_bytes: u64,
    pub host_check: HostCheck,
    /// What a new trigger takes where it says nothing.
    pub trigger_defaults: TriggerDefaults,
    /// What page sessions are signed with.
    pub cookies: CookieKey,
    /// The origin under which people reach the pages through a proxy, as browsers name it: `https://windlass.example.com`.
    pub public_origin: Option<String>,
    /// Plain HTTP without.
    pub tls: Option<Tls>,
}

/// How runs of triggers are retried unless the trigger says otherwise; copied when it is made.
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
        let followed = streams.clone();
        engine.alongside(async move { followed.run().await });
        let (options, stopping) = (Arc::new(options), CancellationToken::new());
        Self(Arc::new(Shared { store, engine, blobs, options, streams, stopping }))
    }

    /// The same, told by this token to stop.
    pub(crate) fn stopped_by(self, stopping: CancellationToken) -> Self {
        Self(Arc::new(Shared { stopping, ..Shared::clone(&self) }))
    }
}
