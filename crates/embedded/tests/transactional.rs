//! Jobs that are enqueued in the caller's own transaction on PostgreSQL.

use std::time::Duration;

use client::wire::{JobRequest, RetrySettings};
use client::{TransactionalError, enqueue_in};
use domain::{JobId, JobState};
use embedded::{Embedded, JobBuilder};
use engine::EngineOptions;
use serde_json::value::to_raw_value;
use store::DatabaseUrl;
use testkit::eventually::TIMEOUT;
use testkit::{Database, on_postgres};
use tokio::task::JoinSet;
use tokio_postgres::NoTls;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

#[path = "../examples/transaction.rs"]
#[expect(dead_code, unreachable_pub, reason = "the example is a program of its own")]
mod transaction;

/// A connection of the application.
struct Application {
    client: tokio_postgres::Client,
    _driver: JoinSet<Result<(), tokio_postgres::Error>>,
}

async fn application(url: &DatabaseUrl) -> Application {
    let DatabaseUrl::Postgres(url) = url else { panic!("PostgreSQL only") };
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("the server answers");
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    Application { client, _driver: driver }
}

fn request() -> JobRequest {
    JobRequest { queue: "q".into(), kind: "k".into(), ..JobRequest::default() }
}

async fn enqueue(application: &mut Application, request: &JobRequest) -> Result<Uuid, TransactionalError> {
    let mut transaction = application.client.transaction().await.expect("it begins");
    let job = enqueue_in(&mut transaction, request).await?;
    transaction.commit().await.expect("it commits");
    Ok(job)
}

async fn engine(db: &Database) -> Embedded {
    Embedded::on(db.store.clone(), EngineOptions::default()).await.expect("the engine starts")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_worker_takes_the_job_of_a_committed_transaction_and_no_other() {
    on_postgres(async |db| {
        let engine = engine(&db).await;
        let worker = engine.worker().queue("q").handle("k", async |job: client::JobContext| job.payload::<u64>());
        let (worker, stop) = (worker.build().expect("the worker is complete"), CancellationToken::new());
        let mut run = JoinSet::new();
        run.spawn({
            let stop = stop.clone();
            async move { worker.run(stop).await }
        });
        // The worker waits in a claim after this job.
        let first = engine.enqueue(JobBuilder::new("q", "k").expect("names").payload(&0).expect("JSON")).await;
        engine.wait(first.expect("it is accepted").id, TIMEOUT).await.expect("the engine responds");
        let mut application = application(&db.admin).await;
        let of = |payload: u64| {
            let payload = Some(to_raw_value(&payload).expect("JSON"));
            JobRequest { payload, priority: Some(3), tags: Some(vec!["a".into(), "b".into()]), ..request() }
        };
        let mut transaction = application.client.transaction().await.expect("it begins");
        let dropped = enqueue_in(&mut transaction, &of(1)).await.expect("it is enqueued");
        transaction.rollback().await.expect("it rolls back");
        let kept = enqueue(&mut application, &of(2)).await.expect("it is enqueued");
        let ended = engine.wait(JobId::new(kept), TIMEOUT).await.expect("the engine responds").expect("it exists");
        assert_eq!((ended.state, ended.result.as_deref()), (JobState::Succeeded, Some("2")));
        assert_eq!((ended.lane.priority, ended.tags), (3, vec!["a".to_owned(), "b".to_owned()]));
        assert!(engine.wait(JobId::new(dropped), Duration::ZERO).await.expect("the engine responds").is_none());
        stop.cancel();
        run.join_next().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_job_is_a_typed_error() {
    on_postgres(async |db| {
        let mut application = application(&db.admin).await;
        let large = to_raw_value(&"x".repeat(2 << 20)).expect("JSON");
        let invalid = [
            JobRequest { queue: "windlass.x".into(), ..request() },
            JobRequest { kind: "no kind".into(), ..request() },
            JobRequest { priority: Some(i64::MAX), ..request() },
            JobRequest { max_attempts: Some(0), ..request() },
            JobRequest { payload: Some(large), ..request() },
        ];
        for request in invalid {
            let refused = enqueue(&mut application, &request).await;
            assert!(matches!(refused, Err(TransactionalError::Invalid(_))), "{refused:?}");
        }
        let retry = RetrySettings { initial_s: Some(1), maximum_s: None, exponent: None, jitter: None };
        let refused = enqueue(&mut application, &JobRequest { retry: Some(retry), ..request() }).await;
        assert!(matches!(refused, Err(TransactionalError::UnsupportedField("retry"))), "{refused:?}");
        // A role without a tenant.
        let role = format!("stranger_{}", std::process::id());
        application.client.batch_execute(&format!("create role {role}; set role {role}")).await.expect("it is created");
        let refused = enqueue(&mut application, &request()).await;
        assert!(matches!(refused, Err(TransactionalError::NotPermitted(_))), "{refused:?}");
        application.client.batch_execute(&format!("reset role; drop role {role}")).await.expect("it is dropped");
        application.client.batch_execute("drop schema windlass cascade").await.expect("it is dropped");
        let refused = enqueue(&mut application, &request()).await;
        assert!(matches!(refused, Err(TransactionalError::NotMigrated(_))), "{refused:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_sends_the_receipt_of_a_committed_order() {
    on_postgres(async |db| {
        let DatabaseUrl::Postgres(url) = &db.admin else { panic!("PostgreSQL only") };
        let sent = transaction::run(&engine(&db).await, url).await.expect("it runs");
        assert_eq!(sent, "\"receipt for order 17\"");
    })
    .await;
}
