//! Short words for what tests do all the time.

use domain::{Epoch, JobError, JobId, TenantId, WorkerId};
use store::jobs::claim::{Claimed, ClaimedJob};
use store::jobs::enqueue::{Accepted, EnqueueReply, NewJob};
use store::jobs::get::StoredJob;
use store::jobs::settle::{End, Outcome, Settled, Status};
use store::tx::{Operation, Tx};
use store::workers::register::NewWorker;
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

pub(crate) fn a_worker(queues: &[&str]) -> NewWorker {
    NewWorker {
        name: "w".into(),
        queues: queues.iter().map(|queue| name(queue)).collect(),
        kinds: None,
        affinities: None,
        lease_ms: 30_000,
    }
}

pub(crate) async fn register(store: &Store, queues: &[&str]) -> WorkerId {
    store.register_worker(T, a_worker(queues)).await.expect("registers")
}

/// A worker of queue `q` whose lease outlasts whatever time the test lets pass.
pub(crate) async fn patient(store: &Store) -> WorkerId {
    let worker = NewWorker { lease_ms: 3_600_000, ..a_worker(&["q"]) };
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

pub(crate) async fn settle(store: &Store, worker: WorkerId, job: JobId, epoch: Epoch, end: End) -> Status {
    let outcome = Outcome { job, epoch, end };
    match store.settle(T, worker, vec![outcome]).await.expect("settles") {
        Settled::Results(statuses) => statuses[0],
        refused => panic!("{refused:?}"),
    }
}

pub(crate) async fn finish(store: &Store, worker: WorkerId, job: &ClaimedJob) -> Status {
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

/// Looks again and again until there is something; fails the test when that takes too long.
pub(crate) async fn until_some<T>(what: &str, look: impl AsyncFn() -> Option<T>) -> T {
    let give_up = std::time::Instant::now() + std::time::Duration::from_secs(120);
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(std::time::Instant::now() < give_up, "waited in vain until {what}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

/// X14 after every test: the kept figures are right.
pub(crate) async fn sound(store: &Store) {
    assert_eq!(store.check_counters().await.expect("checks"), []);
}

/// Rows of one text column, straight from the tables.
pub(crate) async fn texts(store: &Store, sqlite: &str, postgres: &str) -> Vec<String> {
    let text = if store.is_postgres() { postgres } else { sqlite };
    store.read(Texts { text: text.into() }).await.unwrap_or_else(|error| panic!("{text}: {error:?}"))
}

/// One number, the same statement on both databases.
pub(crate) async fn number(store: &Store, text: &str) -> i64 {
    let cast = format!("select cast(({text}) as text)");
    texts(store, &cast, &cast).await[0].parse().expect("a number")
}

/// Runs statements in a transaction of the store's own.
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

/// A connection of our own to a PostgreSQL database, driven until it is dropped.
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
