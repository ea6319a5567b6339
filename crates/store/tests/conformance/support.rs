//! Helpers that most store tests use.

use domain::{Epoch, JobError, JobId, TenantId, WorkerId};
use store::db::tx::{Operation, Tx};
use store::queue::claim::{Claimed, ClaimedJob};
use store::queue::enqueue::{Accepted, EnqueueReply, NewJob};
use store::queue::get::StoredJob;
use store::queue::settle::{End, Outcome, SettleStatus, Settled};
use store::queue::workers::register::NewWorker;
use store::{Store, StoreError};
use testkit::name;

pub(crate) const T: TenantId = TenantId::DEFAULT;

pub(crate) async fn push(store: &Store, job: NewJob) -> JobId {
    push_all(store, vec![job]).await[0].id
}

pub(crate) async fn push_all(store: &Store, jobs: Vec<NewJob>) -> Vec<Accepted> {
    match store.enqueue(T, jobs, None).await.expect("enqueues") {
        EnqueueReply::Accepted(jobs) => jobs,
        EnqueueReply::KeyReused => panic!("no key was given"),
    }
}

pub(crate) fn new_worker(queues: &[&str]) -> NewWorker {
    NewWorker {
        name: "w".into(),
        queues: queues.iter().map(|queue| name(queue)).collect(),
        kinds: None,
        affinities: None,
        lease_ms: 30_000,
    }
}

pub(crate) async fn register(store: &Store, queues: &[&str]) -> WorkerId {
    store.register_worker(T, new_worker(queues)).await.expect("registers")
}

/// Registers a worker of queue `q` whose lease outlasts any clock advance of a test.
pub(crate) async fn register_with_long_lease(store: &Store) -> WorkerId {
    let worker = NewWorker { lease_ms: 3_600_000, ..new_worker(&["q"]) };
    store.register_worker(T, worker).await.expect("registers")
}

pub(crate) async fn claim(store: &Store, worker: WorkerId, max: usize) -> Vec<ClaimedJob> {
    match store.claim(T, worker, max, None).await.expect("claims") {
        Claimed::Jobs { jobs, .. } => jobs,
        other => panic!("the worker cannot claim: {other:?}"),
    }
}

pub(crate) async fn claim_one(store: &Store, worker: WorkerId) -> ClaimedJob {
    let mut jobs = claim(store, worker, 1).await;
    assert_eq!(jobs.len(), 1, "one job was expected");
    jobs.remove(0)
}

pub(crate) async fn settle(store: &Store, worker: WorkerId, job: JobId, epoch: Epoch, end: End) -> SettleStatus {
    let outcome = Outcome { job, epoch, end };
    match store.settle(T, worker, vec![outcome]).await.expect("settles") {
        Settled::Results(statuses) => statuses[0],
        refused => panic!("{refused:?}"),
    }
}

pub(crate) async fn finish(store: &Store, worker: WorkerId, job: &ClaimedJob) -> SettleStatus {
    settle(store, worker, job.id, job.epoch, End::Finish(Some("42".into()))).await
}

pub(crate) fn boom() -> JobError {
    JobError { code: "boom".into(), message: "it broke".into(), retryable: true }
}

pub(crate) async fn get(store: &Store, job: JobId) -> StoredJob {
    store.job(T, job).await.expect("reads").expect("the job exists")
}

pub(crate) async fn state(store: &Store, job: JobId) -> String {
    get(store, job).await.state.to_string()
}

pub(crate) async fn events(store: &Store, job: JobId) -> Vec<String> {
    let items = store.history(T, job).await.expect("reads").expect("the job has a history");
    items.into_iter().map(|item| item.event).collect()
}

/// Asserts at the end of a test that the stored counters match the jobs.
pub(crate) async fn assert_counters_match(store: &Store) {
    assert_eq!(store.check_counters().await.expect("checks"), []);
}

/// Returns the rows of one text column, read directly from the tables.
pub(crate) async fn texts(store: &Store, sqlite: &str, postgres: &str) -> Vec<String> {
    let text = if store.is_postgres() { postgres } else { sqlite };
    store.read(Texts { text: text.into() }).await.unwrap_or_else(|error| panic!("{text}: {error:?}"))
}

/// Returns one number. The statement must work on both databases.
pub(crate) async fn number(store: &Store, text: &str) -> i64 {
    let cast = format!("select cast(({text}) as text)");
    texts(store, &cast, &cast).await[0].parse().expect("a number")
}

/// Runs statements in a write transaction.
pub(crate) async fn run_sql(store: &Store, text: &str) -> Result<(), StoreError> {
    store.write(Batch { text: text.into() }).await
}

struct Texts {
    text: String,
}

impl Operation for Texts {
    type Output = Vec<String>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<String>, StoreError> {
        tx.query_built(&self.text, &[]).await?.iter().map(|row| row.text(0)).collect()
    }
}

struct Batch {
    text: String,
}

impl Operation for Batch {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        tx.batch(&self.text).await
    }
}

/// A separate connection to the PostgreSQL database.
pub(crate) struct Psql {
    pub(crate) client: tokio_postgres::Client,
    _driver: tokio::task::JoinSet<Result<(), tokio_postgres::Error>>,
}

pub(crate) async fn psql(url: &store::DatabaseUrl) -> Psql {
    let store::DatabaseUrl::Postgres(url) = url else { panic!("PostgreSQL only") };
    psql_at(url).await
}

pub(crate) async fn psql_at(url: &str) -> Psql {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.expect("the server answers");
    let mut driver = tokio::task::JoinSet::new();
    driver.spawn(connection);
    Psql { client, _driver: driver }
}
