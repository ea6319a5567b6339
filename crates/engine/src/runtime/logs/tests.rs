//! Both sides of a log on its way through the database. What an engine would say is the test's own.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use domain::limits::{LOG_PART_BYTES, LOG_PARTS_AHEAD, LOG_READINGS, LOG_READINGS_OF_TENANT};
use domain::{RuntimeName, TenantId};
use futures_util::{StreamExt, stream};
use store::runtimes::logs::read::{LogRead, NewReading, Standing};
use store::runtimes::nodes::NodeOffer;
use store::tx::{Operation, Tx};
use store::{Store, StoreError};
use testkit::{Database, on_both};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::read::{LOOK, LOOK_MAX, pause_after};
use super::serve::{Places, ServeLogs, tell};
use super::{LogFlow, LogsError, read};
use crate::runtime::driver::{DriverError, Flow};
use crate::runtime::{RuntimeNode, RuntimeOptions};
use crate::task::Task;

const PATIENCE: Duration = Duration::from_secs(60);

/// The node that is asked, and `far`, which has the container.
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

    /// Ahead: until then it is there, however slow the machine is.
    async fn far_is_there(&self) {
        self.far.clock().advance_ms(PATIENCE.as_millis() as i64);
        self.far.beat_engine_node("far", NodeOffer::default(), None).await.expect("beats");
        self.far.clock().advance_ms(-(PATIENCE.as_millis() as i64));
    }

    async fn ask(&self) -> LogFlow {
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

    /// What is read here while `far` tells this.
    async fn told(&self, log: Result<Flow<Bytes>, DriverError>) -> LogFlow {
        self.far_is_there().await;
        let (flow, ()) = tokio::join!(self.ask(), self.tell(log));
        flow
    }

    async fn tell(&self, log: Result<Flow<Bytes>, DriverError>) {
        let taken = loop {
            match self.far.take_log_readings("far", 1).await.expect("takes").pop() {
                Some(taken) => break taken,
                None => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        };
        let (store, stop) = (self.far.clone(), self.far_stops.clone());
        self.tracker.spawn(async move { tell(&store, &stop, taken.reading, Box::pin(async move { log })).await });
    }

    /// Once both sides have ended, nothing is left in the database.
    async fn leave_nothing(&self) {
        self.tracker.close();
        tokio::time::timeout(PATIENCE, self.tracker.wait()).await.expect("both sides end");
        assert_eq!(self.here.read(Left).await.expect("reads"), 0);
    }
}

/// Readings and parts that are there.
struct Left;

impl Operation for Left {
    type Output = i64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<i64, StoreError> {
        let both = "select (select count(*) from log_readings) + (select count(*) from log_parts)";
        tx.query_built(both, &[]).await?[0].int(0)
    }
}

async fn next(log: &mut LogFlow) -> Option<Result<Bytes, LogsError>> {
    tokio::time::timeout(PATIENCE, log.next()).await.expect("something comes, or it ends")
}

/// What is told next in words, be it a refusal.
async fn words(log: &mut LogFlow) -> String {
    match next(log).await.expect("it goes on") {
        Ok(part) => String::from_utf8_lossy(&part).into_owned(),
        Err(error) => error.to_string(),
    }
}

type Piece = Result<Bytes, DriverError>;
type Opened = Result<Flow<Bytes>, DriverError>;

fn told(pieces: Vec<Piece>) -> Opened {
    Ok(stream::iter(pieces).boxed())
}

/// A log that is written to.
fn written() -> (mpsc::Sender<Piece>, Opened) {
    let (write, written) = mpsc::channel::<Piece>(1);
    let next = |mut written: mpsc::Receiver<_>| async move { written.recv().await.map(|piece| (piece, written)) };
    (write, Ok(stream::unfold(written, next).boxed()))
}

#[tokio::test]
async fn r9_a_log_is_followed_and_forgotten_once_its_reader_has_left() {
    on_both(async |db| {
        let nodes = Nodes::new(&db).await;
        let (write, log) = written();
        let mut log = nodes.told(log).await;
        for line in ["one\n", "two\n"] {
            write.send(Ok(Bytes::from(line))).await.expect("it is followed");
            assert_eq!(words(&mut log).await, line);
        }
        drop(log);
        // Whoever tells it notices with what is written next, or at the next beat.
        while write.send(Ok(Bytes::from("three\n"))).await.is_ok() {}
        nodes.leave_nothing().await;
    })
    .await;
}

#[tokio::test]
async fn r9_a_large_log_arrives_whole_in_parts_that_are_not() {
    on_both(async |db| {
        let nodes = Nodes::new(&db).await;
        let bytes = 3 * LOG_PARTS_AHEAD as usize * LOG_PART_BYTES + 7;
        let all: Vec<u8> = (0..bytes).map(|place| (place % 251) as u8).collect();
        let pieces = all.chunks(100_000).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
        let mut log = nodes.told(told(pieces)).await;
        let mut came = Vec::new();
        while let Some(part) = next(&mut log).await {
            let part = part.expect("is told");
            assert!(part.len() <= LOG_PART_BYTES);
            came.extend_from_slice(&part);
        }
        assert!(came == all, "{} of {} bytes came", came.len(), all.len());
        nodes.leave_nothing().await;
    })
    .await;
}

#[tokio::test]
async fn r9_an_engines_refusal_is_told_as_if_it_were_here() {
    on_both(async |db| {
        let nodes = Nodes::new(&db).await;
        let away = || DriverError::Unavailable("no socket".into());
        let refusals = [
            DriverError::NotFound("no such container".into()),
            away(),
            DriverError::Conflict("it is being removed".into()),
            DriverError::Refused("no".into()),
        ];
        for refusal in refusals {
            let words_here = refusal.to_string();
            assert_eq!(words(&mut nodes.told(Err(refusal)).await).await, words_here);
        }
        let missing = next(&mut nodes.told(Err(DriverError::NotFound("no".into()))).await).await;
        assert!(matches!(missing, Some(Err(LogsError::Engine(DriverError::NotFound(_))))), "{missing:?}");
        // What was written before it is told first.
        let mut log = nodes.told(told(vec![Ok(Bytes::from("one\n")), Err(away())])).await;
        assert_eq!(words(&mut log).await, "one\n");
        assert_eq!(words(&mut log).await, away().to_string());
        nodes.leave_nothing().await;
    })
    .await;
}

#[tokio::test]
async fn r9_a_log_ends_when_its_node_stops() {
    on_both(async |db| {
        let nodes = Nodes::new(&db).await;
        let (_write, log) = written();
        let mut log = nodes.told(log).await;
        nodes.far_stops.cancel();
        assert!(next(&mut log).await.is_none());
        nodes.leave_nothing().await;
    })
    .await;
}

#[tokio::test]
async fn r9_a_node_that_nobody_hears_is_named() {
    on_both(async |db| {
        let nodes = Nodes::new(&db).await;
        assert_eq!(words(&mut nodes.ask().await).await, "its engine is driven by the node far, which does not answer");
        nodes.leave_nothing().await;
    })
    .await;
}

#[tokio::test]
async fn r9_a_node_that_reads_enough_logs_says_so_and_is_not_taken_for_dead() {
    on_both(async |db| {
        let nodes = Nodes::new(&db).await;
        let options = RuntimeOptions::new("far", "unix:///nowhere/docker.sock", PathBuf::new());
        let (tracker, stop) = (nodes.tracker.clone(), nodes.far_stops.clone());
        let far = RuntimeNode::open(&nodes.far, options, tracker, stop).await.expect("is there");
        nodes.far_is_there().await;
        let serving = ServeLogs::new(far);
        let served = async || {
            while serving.run(&nodes.far).await.expect("looks").work.is_none() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let held: Vec<_> = (0..LOG_READINGS_OF_TENANT).map(|_| serving.places.take(TenantId::DEFAULT)).collect();
        let (mut log, ()) = tokio::join!(nodes.ask(), served());
        let refused = next(&mut log).await;
        assert!(matches!(refused, Some(Err(LogsError::Busy(_)))), "{refused:?}");
        drop(held);
        let (mut log, ()) = tokio::join!(nodes.ask(), served());
        let tried = next(&mut log).await;
        assert!(matches!(tried, Some(Err(LogsError::Engine(DriverError::Unavailable(_))))), "{tried:?}");
        drop(log);
        nodes.leave_nothing().await;
    })
    .await;
}

#[test]
fn r9_one_tenant_leaves_half_of_the_places_to_the_others() {
    let places = Places::default();
    let fill = |tenant| (0..LOG_READINGS).map_while(|_| places.take(TenantId(tenant))).collect::<Vec<_>>();
    let [first, second] = [fill(1), fill(2)];
    assert_eq!((first.len(), second.len()), (LOG_READINGS_OF_TENANT, LOG_READINGS - LOG_READINGS_OF_TENANT));
    assert_eq!(fill(3).len(), 0, "all are taken");
    drop(first);
    assert_eq!(fill(3).len(), LOG_READINGS_OF_TENANT);
}

#[test]
fn r9_a_log_to_which_nothing_comes_is_looked_at_less_often() {
    let after = |parts: &[Bytes], standing, pause| pause_after(&LogRead { parts: parts.to_vec(), standing }, pause);
    let mut pause = LOOK;
    for _ in 0..10 {
        let longer = after(&[], Standing::Open, pause);
        assert_eq!(longer, (2 * pause).min(LOOK_MAX));
        pause = longer;
    }
    assert_eq!(pause, LOOK_MAX);
    assert_eq!(after(&[Bytes::from("one")], Standing::Open, pause), LOOK);
    assert_eq!(after(&[], Standing::Asked, pause), LOOK);
}
