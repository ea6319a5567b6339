//! Both sides of a log transfer through the database. The test replaces Docker.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use domain::limits::{
    CONCURRENT_LOG_READINGS, CONCURRENT_LOG_READINGS_PER_TENANT, LOG_BUFFERED_CHUNKS, LOG_CHUNK_BYTES,
};
use domain::{RuntimeName, TenantId};
use futures_util::{StreamExt, stream};
use store::db::tx::{Operation, Tx};
use store::runtimes::logs::read::{LogRead, LogStatus, NewReading};
use store::runtimes::nodes::NodeOffer;
use store::{Store, StoreError};
use testkit::eventually::{eventually, wait_until};
use testkit::{Database, on_both};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::read::{PAUSE, PAUSE_MAX, pause_after};
use super::serve::{ReadingPermits, ServeLogs, send};
use super::{LogStream, LogsError, read};
use crate::runtimes::driver::{DriverError, DriverStream};
use crate::runtimes::{RuntimeNode, RuntimeOptions};
use crate::task::Task;

const TIMEOUT: Duration = Duration::from_secs(60);

/// The reading node, and `far`, which has the container.
struct Nodes {
    here: Store,
    far: Store,
    tracker: TaskTracker,
    here_stops: CancellationToken,
    far_stops: CancellationToken,
}

impl Nodes {
    async fn new(db: &Database) -> Self {
        Self {
            here: db.store.clone(),
            far: db.another_node().await,
            tracker: TaskTracker::new(),
            here_stops: CancellationToken::new(),
            far_stops: CancellationToken::new(),
        }
    }

    /// The heartbeat is in the future, so that the node counts as alive even on a slow machine.
    async fn far_is_there(&self) {
        self.far.clock().advance_ms(TIMEOUT.as_millis() as i64);
        self.far.beat_engine_node("far", NodeOffer::default(), None).await.expect("beats");
        self.far.clock().advance_ms(-(TIMEOUT.as_millis() as i64));
    }

    async fn request(&self) -> LogStream {
        let new = NewReading {
            tenant: TenantId::DEFAULT,
            runtime: RuntimeName::stored("model"),
            container_id: "c".into(),
            node: "far".into(),
            tail: 200,
            follow: true,
        };
        read(&self.here, &self.tracker, &self.here_stops, new).await
    }

    /// The log as read here while `far` sends it.
    async fn transfer(&self, log: Result<DriverStream<Bytes>, DriverError>) -> LogStream {
        self.far_is_there().await;
        let (stream, ()) = tokio::join!(self.request(), self.send(log));
        stream
    }

    async fn send(&self, log: Result<DriverStream<Bytes>, DriverError>) {
        let claim = async || self.far.claim_log_readings("far", 1).await.expect("claims").pop();
        let claimed = eventually("a log reading is requested", claim).await;
        let (store, stop) = (self.far.clone(), self.far_stops.clone());
        self.tracker.spawn(async move { send(&store, &stop, claimed.reading, Box::pin(async move { log })).await });
    }

    /// Once both sides have ended, no rows remain in the database.
    async fn assert_no_rows(&self) {
        self.tracker.close();
        tokio::time::timeout(TIMEOUT, self.tracker.wait()).await.expect("both sides end");
        assert_eq!(self.here.read(CountRemaining).await.expect("reads"), 0);
    }
}

/// Counts the readings and chunks in the database.
struct CountRemaining;

impl Operation for CountRemaining {
    type Output = i64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<i64, StoreError> {
        let both = "select (select count(*) from log_readings) + (select count(*) from log_parts)";
        tx.query_built(both, &[]).await?[0].int(0)
    }
}

async fn next(log: &mut LogStream) -> Option<Result<Bytes, LogsError>> {
    tokio::time::timeout(TIMEOUT, log.next()).await.expect("the stream continues or ends")
}

/// The next item as text, be it a chunk or an error.
async fn next_text(log: &mut LogStream) -> String {
    match next(log).await.expect("the stream continues") {
        Ok(part) => String::from_utf8_lossy(&part).into_owned(),
        Err(error) => error.to_string(),
    }
}

type Chunk = Result<Bytes, DriverError>;
type Opened = Result<DriverStream<Bytes>, DriverError>;

fn opened(chunks: Vec<Chunk>) -> Opened {
    Ok(stream::iter(chunks).boxed())
}

/// A log that the test writes to.
fn writable() -> (mpsc::Sender<Chunk>, Opened) {
    let (write, written) = mpsc::channel::<Chunk>(1);
    let next = |mut written: mpsc::Receiver<_>| async move { written.recv().await.map(|chunk| (chunk, written)) };
    (write, Ok(stream::unfold(written, next).boxed()))
}

/// Requirement R9.
#[tokio::test]
async fn a_followed_log_is_deleted_after_its_reader_disconnects() {
    on_both(async |db| {
        let nodes = Nodes::new(&db).await;
        let (write, log) = writable();
        let mut log = nodes.transfer(log).await;
        for line in ["one\n", "two\n"] {
            write.send(Ok(Bytes::from(line))).await.expect("the log is followed");
            assert_eq!(next_text(&mut log).await, line);
        }
        drop(log);
        // The serving node notices at the next chunk or heartbeat.
        while write.send(Ok(Bytes::from("three\n"))).await.is_ok() {}
        nodes.assert_no_rows().await;
    })
    .await;
}

/// Requirement R9.
#[tokio::test]
async fn a_large_log_arrives_complete_in_bounded_chunks() {
    on_both(async |db| {
        let nodes = Nodes::new(&db).await;
        let bytes = 3 * LOG_BUFFERED_CHUNKS as usize * LOG_CHUNK_BYTES + 7;
        let all: Vec<u8> = (0..bytes).map(|index| (index % 251) as u8).collect();
        let chunks = all.chunks(100_000).map(|chunk| Ok(Bytes::copy_from_slice(chunk))).collect();
        let mut log = nodes.transfer(opened(chunks)).await;
        let mut received = Vec::new();
        while let Some(chunk) = next(&mut log).await {
            let chunk = chunk.expect("a chunk");
            assert!(chunk.len() <= LOG_CHUNK_BYTES);
            received.extend_from_slice(&chunk);
        }
        assert!(received == all, "{} of {} bytes received", received.len(), all.len());
        nodes.assert_no_rows().await;
    })
    .await;
}

/// Requirement R9.
#[tokio::test]
async fn a_docker_error_of_a_remote_node_is_returned_like_a_local_one() {
    on_both(async |db| {
        let nodes = Nodes::new(&db).await;
        let unavailable = || DriverError::Unavailable("no socket".into());
        let errors = [
            DriverError::NotFound("no such container".into()),
            unavailable(),
            DriverError::Conflict("it is being removed".into()),
            DriverError::Refused("no".into()),
        ];
        for error in errors {
            let local_text = error.to_string();
            assert_eq!(next_text(&mut nodes.transfer(Err(error)).await).await, local_text);
        }
        let missing = next(&mut nodes.transfer(Err(DriverError::NotFound("no".into()))).await).await;
        assert!(matches!(missing, Some(Err(LogsError::Engine(DriverError::NotFound(_))))), "{missing:?}");
        // Output before the error is sent first.
        let mut log = nodes.transfer(opened(vec![Ok(Bytes::from("one\n")), Err(unavailable())])).await;
        assert_eq!(next_text(&mut log).await, "one\n");
        assert_eq!(next_text(&mut log).await, unavailable().to_string());
        nodes.assert_no_rows().await;
    })
    .await;
}

/// Requirement R9.
#[tokio::test]
async fn a_log_ends_when_its_node_stops() {
    on_both(async |db| {
        let nodes = Nodes::new(&db).await;
        let (_write, log) = writable();
        let mut log = nodes.transfer(log).await;
        nodes.far_stops.cancel();
        assert!(next(&mut log).await.is_none());
        nodes.assert_no_rows().await;
    })
    .await;
}

/// Requirement R9.
#[tokio::test]
async fn a_node_that_does_not_respond_is_named_in_the_error() {
    on_both(async |db| {
        let nodes = Nodes::new(&db).await;
        let error = next_text(&mut nodes.request().await).await;
        assert_eq!(error, "the node far, which has the container, does not respond");
        nodes.assert_no_rows().await;
    })
    .await;
}

/// Requirement R9.
#[tokio::test]
async fn a_node_at_its_log_reading_limit_reports_busy_instead_of_unreachable() {
    on_both(async |db| {
        let nodes = Nodes::new(&db).await;
        let options = RuntimeOptions::new("far", "unix:///nowhere/docker.sock", PathBuf::new());
        let (tracker, stop) = (nodes.tracker.clone(), nodes.far_stops.clone());
        let far = RuntimeNode::open(&nodes.far, options, tracker, stop).await.expect("opens");
        nodes.far_is_there().await;
        let serving = ServeLogs::new(far);
        let served = async || {
            let serves = async || serving.run(&nodes.far).await.expect("runs").work.is_some();
            wait_until("a log reading is served", serves).await;
        };
        let used: Vec<_> =
            (0..CONCURRENT_LOG_READINGS_PER_TENANT).map(|_| serving.permits.try_acquire(TenantId::DEFAULT)).collect();
        let (mut log, ()) = tokio::join!(nodes.request(), served());
        let refused = next(&mut log).await;
        assert!(matches!(refused, Some(Err(LogsError::Busy(_)))), "{refused:?}");
        drop(used);
        let (mut log, ()) = tokio::join!(nodes.request(), served());
        let served = next(&mut log).await;
        assert!(matches!(served, Some(Err(LogsError::Engine(DriverError::Unavailable(_))))), "{served:?}");
        drop(log);
        nodes.assert_no_rows().await;
    })
    .await;
}

/// Requirement R9.
#[test]
fn one_tenant_uses_at_most_half_of_the_log_reading_permits() {
    let permits = ReadingPermits::default();
    let fill =
        |tenant| (0..CONCURRENT_LOG_READINGS).map_while(|_| permits.try_acquire(TenantId(tenant))).collect::<Vec<_>>();
    let [first, second] = [fill(1), fill(2)];
    assert_eq!(
        (first.len(), second.len()),
        (CONCURRENT_LOG_READINGS_PER_TENANT, CONCURRENT_LOG_READINGS - CONCURRENT_LOG_READINGS_PER_TENANT)
    );
    assert_eq!(fill(3).len(), 0, "all permits are used");
    drop(first);
    assert_eq!(fill(3).len(), CONCURRENT_LOG_READINGS_PER_TENANT);
}

/// Requirement R9.
#[test]
fn an_idle_log_is_polled_less_often() {
    let after = |parts: &[Bytes], status, pause| pause_after(&LogRead { parts: parts.to_vec(), status }, pause);
    let mut pause = PAUSE;
    for _ in 0..10 {
        let longer = after(&[], LogStatus::Open, pause);
        assert_eq!(longer, (2 * pause).min(PAUSE_MAX));
        pause = longer;
    }
    assert_eq!(pause, PAUSE_MAX);
    assert_eq!(after(&[Bytes::from("one")], LogStatus::Open, pause), PAUSE);
    assert_eq!(after(&[], LogStatus::Requested, pause), PAUSE);
}
