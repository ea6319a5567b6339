//! Who owns a job while workers freeze, die and stop, and while the server restarts (X3, X4, Q7).

use std::sync::Arc;
use std::time::Duration;

use client::wire::{OutcomeKind, OutcomeRequest, OutcomeStatus, SettleRequest, SignalUpdate};
use client::{Client, HandlerError, JobContext, Statistics, Worker};
use rustix::process::Signal;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::support::{
    Place, Program, Serve, Server, Work, ended, events, free_port, in_state, job, on_both, push, until, value,
};

fn finish(job_id: Uuid, epoch: i64) -> SettleRequest {
    let outcome = OutcomeKind::Finish;
    let outcome = OutcomeRequest { job_id, epoch, outcome, result: None, facts: None, error: None, delay_s: None };
    SettleRequest { outcomes: vec![outcome] }
}

/// How often the job was taken from a worker whose lease had passed.
async fn expiries(client: &Client, id: Uuid) -> i64 {
    events(client, id).await.iter().filter(|event| *event == "expired").count() as i64
}

/// The program of a job says that it has begun: the database says so before the worker itself hears it.
async fn running(place: &Place) {
    until("the program runs", async || place.path("running").exists().then_some(())).await;
}

/// A worker in this process whose jobs take until they are let go.
struct Held {
    /// How many handlers have begun.
    begun: watch::Receiver<usize>,
    let_go: watch::Sender<bool>,
    stop: CancellationToken,
    worker: Arc<Worker<Client>>,
    run: JoinSet<Statistics>,
}

impl Held {
    fn start(client: Client, queue: &str, lease_s: i64) -> Self {
        let (told, begun) = watch::channel(0);
        let (let_go, gate) = watch::channel(false);
        let handle = move |_: JobContext| {
            let mut gate = gate.clone();
            told.send_modify(|begun| *begun += 1);
            async move {
                gate.wait_for(|open| *open).await?;
                Ok::<_, HandlerError>("done")
            }
        };
        let worker = Worker::builder(client).queue(queue).lease_s(lease_s).concurrency(2).prefetch(0);
        let worker = Arc::new(worker.handle_any(handle).build().expect("the worker is complete"));
        let stop = CancellationToken::new();
        let mut run = JoinSet::new();
        {
            let (worker, stop) = (worker.clone(), stop.clone());
            run.spawn(async move { worker.run(stop).await.expect("nobody refuses the worker") });
        }
        Self { begun, let_go, stop, worker, run }
    }

    /// Stops it once it has heard what became of this many outcomes.
    async fn stop(mut self, outcomes: u64) -> Statistics {
        until("every outcome is answered", async || {
            let Statistics { done, lost, .. } = self.worker.statistics();
            (done + lost >= outcomes).then_some(())
        })
        .await;
        self.stop.cancel();
        self.run.join_next().await.expect("it was started").expect("it does not panic")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn x3_a_worker_frozen_past_its_lease_cannot_settle_what_another_took_over() {
    on_both(async |place| {
        let server = Server::start(&place).await;
        let client = server.client();
        let args = ["--lease-s", "1", "--name", "frozen"];
        let mut frozen = Work::start(&place, &server, "q", &args, "mark running; wait_for thaw; echo '\"frozen\"'");
        let id = push(&client, "q", json!(1)).await;
        running(&place).await;
        let first = in_state(&client, id, &["working"]).await;
        frozen.signal(Signal::STOP);

        let mut other = Work::start(&place, &server, "q", &["--name", "other"], "wait_for done; echo '\"other\"'");
        // By its name: with so short a lease the first may have lost the job and taken it again before it was frozen.
        let second = until("another worker has the job", async || {
            let workers = client.workers(None).await.expect("workers are listed").items;
            let other = workers.iter().find(|worker| worker.name == "other")?.id;
            let job = client.job(id).await.expect("the job is there");
            (job.state == "working" && job.worker == Some(other)).then_some(job)
        })
        .await;
        assert_eq!(second.attempt, 1 + expiries(&client, id).await, "an expiry counts as an attempt (X4)");
        assert!(second.epoch > first.epoch, "{second:?}");
        assert_ne!(first.worker, second.worker);

        // What the first worker says of its claim is refused and changes nothing.
        let stale = first.worker.expect("a working job has a worker");
        let settled = client.settle(stale, &finish(id, first.epoch)).await.expect("the outcome is judged");
        assert_eq!(settled.results[0].status, OutcomeStatus::ClaimLost);
        let signal = SignalUpdate { epoch: first.epoch, phase: Some("late".into()), ..SignalUpdate::default() };
        assert_eq!(client.put_signal(id, &signal).await.unwrap_err().status(), Some(409));
        let artifact = client.put_artifact(id, Some(first.epoch), "late", "text/plain", "late").await;
        assert_eq!(artifact.unwrap_err().status(), Some(409));
        let unchanged = client.job(id).await.expect("the job is there");
        assert_eq!((unchanged.epoch, unchanged.state, unchanged.phase), (second.epoch, second.state, second.phase));

        // The frozen worker's program ends, the worker thaws and tells of it.
        std::fs::write(place.path("thaw"), "").expect("the folder takes files");
        frozen.signal(Signal::CONT);
        std::fs::write(place.path("done"), "").expect("the folder takes files");
        let job = ended(&client, id).await;
        assert_eq!((job.state.as_str(), value(job.result.as_deref())), ("succeeded", json!("other")));
        assert!(events(&client, id).await.contains(&"expired".to_owned()));
        assert_eq!(other.terminate().await, Some(0));

        // It lost that job and not its use: it registers anew and does the next one.
        let next = ended(&client, push(&client, "q", json!(2)).await).await;
        assert_eq!(value(next.result.as_deref()), json!("frozen"));
        assert_eq!(frozen.terminate().await, Some(0));
        assert!(frozen.stderr().contains("1 done, 0 failed"), "{}", frozen.stderr());
        drop(server);
        place.verify().await;
    })
    .await;
}

/// Starts a job on a worker with this lease, stops the server, brings it back after `down`, lets the job end.
async fn restart_under_a_long_job(place: Place, lease_s: i64, down: Duration) {
    let port = free_port();
    let mut server = Serve::on(&place).port(port).start().await;
    let client = server.client();
    let worker = Held::start(client.clone(), "q", lease_s);
    let ids = [push(&client, "q", json!(1)).await, push(&client, "q", json!(2)).await];
    // By then it has heard of its claims, which a server that stops could have left unanswered.
    until("both handlers have begun", async || (*worker.begun.borrow() == ids.len()).then_some(())).await;
    let mut epochs = Vec::new();
    for id in ids {
        epochs.push(in_state(&client, id, &["working"]).await.epoch);
    }

    assert_eq!(server.program.terminate().await, Some(0), "an open claim and heartbeat do not hold up the stop");
    tokio::time::sleep(down).await;
    server = Serve::on(&place).port(port).start().await;
    // Another client: the first one's connections ended with the server that is gone.
    let client = server.client();
    // The worker is heard again by the new server, and a lease later the jobs are still its own.
    let seen = client.workers(None).await.expect("workers are listed").items;
    let renewed = seen.first().expect("the worker is known").lease_until;
    until("the worker's heartbeat comes through", async || {
        let workers = client.workers(None).await.expect("workers are listed").items;
        let by_now = workers
            .first()
            .is_some_and(|worker| worker.lease_until.duration_since(renewed).as_secs_f64() > lease_s as f64);
        by_now.then_some(())
    })
    .await;
    worker.let_go.send_replace(true);
    for (id, epoch) in ids.into_iter().zip(epochs) {
        let job = ended(&client, id).await;
        assert_eq!(job.state, "succeeded");
        assert_eq!((job.attempt, job.epoch), (1, epoch), "{:?}", events(&client, id).await);
    }
    let statistics = worker.stop(2).await;
    assert_eq!((statistics.done, statistics.lost), (2, 0));
    drop(server);
    place.verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn q7_workers_keep_their_jobs_when_the_server_restarts() {
    on_both(async |place| restart_under_a_long_job(place, 10, Duration::ZERO).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn q7_a_server_that_is_down_for_longer_than_the_lease_burns_no_attempt() {
    on_both(async |place| restart_under_a_long_job(place, 6, Duration::from_secs(7)).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn q7_a_server_that_is_down_for_little_longer_than_a_short_lease_burns_no_attempt() {
    on_both(async |place| restart_under_a_long_job(place, 2, Duration::from_millis(1_900)).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn q7_work_that_is_told_to_stop_lets_its_job_end() {
    on_both(async |place| {
        let server = Server::start(&place).await;
        let client = server.client();
        let args = ["--drain", "180s"];
        let mut work = Work::start(&place, &server, "q", &args, "mark running; wait_for go; echo 7");
        let id = push(&client, "q", json!(1)).await;
        running(&place).await;
        work.signal(Signal::TERM);
        until("it says that it drains", async || work.stderr().contains("Draining").then_some(())).await;
        std::fs::write(place.path("go"), "").expect("the folder takes files");
        assert_eq!(work.ended().await.code(), Some(0));
        let job = client.job(id).await.expect("the job is there");
        assert_eq!((job.state.as_str(), job.attempt, value(job.result.as_deref())), ("succeeded", 1, json!(7)));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn q7_work_that_must_stop_gives_its_job_back_without_burning_an_attempt() {
    on_both(async |place| {
        let server = Server::start(&place).await;
        let client = server.client();
        let script = "trap 'mark told; exit 1' TERM; mark running; wait_for never";
        let args = ["--drain", "0s", "--grace", "180s"];
        let mut work = Work::start(&place, &server, "q", &args, script);
        let id = push(&client, "q", json!(1)).await;
        running(&place).await;
        assert_eq!(work.terminate().await, Some(0));
        assert!(place.path("told").exists(), "the program heard SIGTERM");
        assert!(work.stderr().contains("1 given back"), "{}", work.stderr());
        let job = client.job(id).await.expect("the job is there");
        assert_eq!((job.state.as_str(), job.attempt), ("queued", 0), "an attempt that was given back does not count");
        assert!(events(&client, id).await.contains(&"released".to_owned()));

        let again = Work::start(&place, &server, "q", &[], "echo $WINDLASS_ATTEMPT");
        let job = ended(&client, id).await;
        assert_eq!((job.attempt, value(job.result.as_deref())), (1, json!(1)));
        drop(again);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn q7_the_job_of_a_killed_worker_comes_back_with_an_attempt_counted() {
    on_both(async |place| {
        let server = Server::start(&place).await;
        let client = server.client();
        let mut killed = Work::start(&place, &server, "q", &["--lease-s", "1"], "mark running; wait_for never");
        let id = client.enqueue(&job("q", json!(1))).await.expect("the job is accepted").id;
        running(&place).await;
        killed.kill().await;
        let heir: Program = Work::start(&place, &server, "q", &[], "echo $WINDLASS_ATTEMPT");
        let job = ended(&client, id).await;
        // With so short a lease it may have expired before the worker was killed, too.
        let attempt = 1 + expiries(&client, id).await;
        assert!(attempt >= 2, "{:?}", events(&client, id).await);
        let told = (job.state.as_str(), job.attempt, value(job.result.as_deref()));
        assert_eq!(told, ("succeeded", attempt, json!(attempt)));
        drop(heir);
    })
    .await;
}
