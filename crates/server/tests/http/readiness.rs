//! Readiness while writes do not complete.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::json;
use store::db::tx::{Operation, Tx};
use store::{DatabaseUrl, StoreError};
use testkit::on_both;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::api::Api;

/// The time limit that operators rely on.
const LIMIT: Duration = Duration::from_secs(5);

/// A transaction of another program that holds the lock that heartbeats need.
struct HoldLock {
    is_sqlite: bool,
    is_held: Notify,
    /// SQLite operations run on a thread of their own and must not await, so they block here.
    on_sqlite: Mutex<Receiver<()>>,
    on_postgres: Notify,
}

impl Operation for HoldLock {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        tx.batch("update service set beat_at = beat_at").await?;
        self.is_held.notify_one();
        if self.is_sqlite {
            let _ = self.on_sqlite.lock().unwrap().recv();
        } else {
            self.on_postgres.notified().await;
        }
        Ok(())
    }
}

/// Requirement X12.
#[tokio::test]
async fn a_server_with_hanging_writes_is_not_ready_within_five_seconds() {
    on_both(async |db| {
        let api = Api::new(db).await;
        assert_eq!(api.get("/readyz").await.status, 200);
        let (release, on_sqlite) = channel();
        let lock = std::sync::Arc::new(HoldLock {
            is_sqlite: matches!(api.db.url, DatabaseUrl::Sqlite(_)),
            is_held: Notify::new(),
            on_sqlite: Mutex::new(on_sqlite),
            on_postgres: Notify::new(),
        });
        let holder = api.db.another_node().await;
        let held = lock.clone();
        let mut transaction = JoinSet::new();
        transaction.spawn(async move { holder.write(Shared(held)).await });
        lock.is_held.notified().await;
        let since = Instant::now();
        let unready = testkit::eventually::eventually("the server is not ready", async || {
            let ready = api.get("/readyz").await;
            (ready.status == 503).then(|| ready.json())
        })
        .await;
        assert!(since.elapsed() < LIMIT, "{:?}", since.elapsed());
        assert_eq!(unready, json!({"status": "unavailable", "detail": "the database accepts no writes"}));
        assert_eq!(api.get("/healthz").await.status, 200);

        release.send(()).unwrap();
        lock.on_postgres.notify_one();
        transaction.join_next().await.unwrap().unwrap().unwrap();
        testkit::eventually::eventually("the server is ready again", async || {
            (api.get("/readyz").await.status == 200).then_some(())
        })
        .await;
    })
    .await;
}

/// The test keeps the lock while a node runs its operation.
struct Shared(std::sync::Arc<HoldLock>);

impl Operation for Shared {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        self.0.run(tx).await
    }
}
