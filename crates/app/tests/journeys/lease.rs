//! Ownership of jobs while workers freeze, are killed and stop, and while the server restarts.

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
    Fixture, Program, Serve, Server, Work, before_timeout, ended, events, eventually, free_port, in_state, job,
    on_both, push, value,
};

fn finish(job_id: Uuid, epoch: i64) -> SettleRequest {
    let outcome = OutcomeKind::Finish;
    let outcome = OutcomeRequest {
        job_id,
        epoch,
        outcome,
        result: None,
        facts: None,
        error: None,
        delay_s: None,
        backoff_s: None,
        backoff_until: None,
        wake: None,
        payload: None,
    };
    SettleRequest { outcomes: vec![outcome] }
}

/// Returns how often a lease of the job expired.
async fn expirations(client: &Client, id: Uuid) -> i64 {
    events(client, id).await.iter().filter(|event| *event == "expired").count() as i64
}

/// Waits until the job's program has started, which is after the worker received the claim.
async fn running(fixture: &Fixture) {
    eventually("the program runs", async || fixture.path("running").exists().then_some(())).await;
}

/// A worker in this process with handlers that wait until a gate opens.
struct GatedWorker {
    /// Number of started handlers.
    started: watch::Receiver<usize>,
    open_gate: watch::Sender<bool>,
    stop: CancellationToken,
    worker: Arc<Worker<Client>>,
    run: JoinSet<Statistics>,
}

impl GatedWorker {
    fn start(client: Client, queue: &str, lease_s: i64) -> Self {
        let (sender, started) = watch::channel(0);
        let (open_gate, gate) = watch::channel(false);
        let handle = move |_: JobContext| {
            let mut gate = gate.clone();
            sender.send_modify(|started| *started += 1);
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
            run.spawn(async move { worker.run(stop).await.expect("the server accepts the worker") });
        }
        Self { started, open_gate, stop, worker, run }
    }

    /// Stops the worker once it has received the results of this many outcomes.
    async fn stop(mut self, outcomes: u64) -> Statistics {
        eventually("every outcome has a result", async || {
            let Statistics { done, lost, .. } = self.worker.statistics();
            (done + lost >= outcomes).then_some(())
        })
        .await;
        self.stop.cancel();
        self.run.join_next().await.expect("the worker was started").expect("the worker does not panic")
    }
}

/// Requirement X3.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_frozen_past_its_lease_cannot_settle_a_job_that_another_claimed() {
    on_both(async |fixture| {
        let server = Server::start(&fixture).await;
        let client = server.client();
        let args = ["--lease-s", "1", "--name", "frozen"];
        let mut frozen = Work::start(&fixture, &server, "q", &args, "mark running; wait_for thaw; echo '\"frozen\"'");
        let id = push(&client, "q", json!(1)).await;
        running(&fixture).await;
        let first = in_state(&client, id, &["working"]).await;
        frozen.signal(Signal::STOP);

        let mut other = Work::start(&fixture, &server, "q", &["--name", "other"], "wait_for done; echo '\"other\"'");
        // Identified by its name: with this short lease the first worker may have lost the job and claimed it again
        // before it was frozen.
        let second = eventually("another worker claims the job", async || {
            let workers = client.workers(None).await.expect("workers are listed").items;
            let other = workers.iter().find(|worker| worker.name == "other")?.id;
            let job = client.job(id).await.expect("the job exists");
            (job.state == "working" && job.worker == Some(other)).then_some(job)
        })
        .await;
        assert_eq!(second.attempt, 1 + expirations(&client, id).await, "an expired lease counts as an attempt");
        assert!(second.epoch > first.epoch, "{second:?}");
        assert_ne!(first.worker, second.worker);

        // Requests of the first worker with its old epoch are rejected.
        let stale = first.worker.expect("a working job has a worker");
        let settled = client.settle(stale, &finish(id, first.epoch)).await.expect("the server responds");
        assert_eq!(settled.results[0].status, OutcomeStatus::ClaimLost);
        let signal = SignalUpdate { epoch: first.epoch, phase: Some("late".into()), ..SignalUpdate::default() };
        assert_eq!(client.put_signal(id, &signal).await.unwrap_err().status(), Some(409));
        let artifact = client.put_artifact(id, Some(first.epoch), "late", "text/plain", "late").await;
        assert_eq!(artifact.unwrap_err().status(), Some(409));
        let unchanged = client.job(id).await.expect("the job exists");
        assert_eq!((unchanged.epoch, unchanged.state, unchanged.phase), (second.epoch, second.state, second.phase));

        // The frozen worker's program exits, and the thawed worker reports its result.
        std::fs::write(fixture.path("thaw"), "").expect("writes the file");
        frozen.signal(Signal::CONT);
        std::fs::write(fixture.path("done"), "").expect("writes the file");
        let job = ended(&client, id).await;
        assert_eq!((job.state.as_str(), value(job.result.as_deref())), ("succeeded", json!("other")));
        assert!(events(&client, id).await.contains(&"expired".to_owned()));
        assert_eq!(other.terminate().await, Some(0));

        // The worker lost that job, registers again and runs the next one.
        let next = ended(&client, push(&client, "q", json!(2)).await).await;
        assert_eq!(value(next.result.as_deref()), json!("frozen"));
        assert_eq!(frozen.terminate().await, Some(0));
        assert!(frozen.stderr().contains("1 done, 0 failed"), "{}", frozen.stderr());
        drop(server);
        fixture.verify().await;
    })
    .await;
}

/// Restarts the server after `down` under two running jobs, and asserts that the worker keeps both of them.
async fn restart_under_a_long_job(fixture: Fixture, lease_s: i64, down: Duration) {
    let port = free_port();
    let mut server = Serve::on(&fixture).port(port).start().await;
    let client = server.client();
    let mut worker = GatedWorker::start(client.clone(), "q", lease_s);
    let ids = [push(&client, "q", json!(1)).await, push(&client, "q", json!(2)).await];
    // Handlers start after the worker has received its claims, whose response a stopping server could have dropped.
    let both = worker.started.wait_for(|started| *started == ids.len());
    before_timeout("both handlers start", both).await.expect("the worker runs");
    let mut epochs = Vec::new();
    for id in ids {
        epochs.push(in_state(&client, id, &["working"]).await.epoch);
    }

    assert_eq!(server.program.terminate().await, Some(0), "an open claim and heartbeat do not delay the stop");
    // The worker process measures its lease in real time.
    tokio::time::sleep(down).await;
    server = Serve::on(&fixture).port(port).start().await;
    // A new client, because the connections of the first one ended with the first server.
    let client = server.client();
    // The worker renews its lease on the new server, and one lease later the jobs are still its own.
    let listed = client.workers(None).await.expect("workers are listed").items;
    let renewed = listed.first().expect("the worker is listed").lease_until;
    eventually("the worker sends a heartbeat", async || {
        let workers = client.workers(None).await.expect("workers are listed").items;
        let has_renewed = workers
            .first()
            .is_some_and(|worker| worker.lease_until.duration_since(renewed).as_secs_f64() > lease_s as f64);
        has_renewed.then_some(())
    })
    .await;
    worker.open_gate.send_replace(true);
    for (id, epoch) in ids.into_iter().zip(epochs) {
        let job = ended(&client, id).await;
        assert_eq!(job.state, "succeeded");
        assert_eq!((job.attempt, job.epoch), (1, epoch), "{:?}", events(&client, id).await);
    }
    let statistics = worker.stop(2).await;
    assert_eq!((statistics.done, statistics.lost), (2, 0));
    drop(server);
    fixture.verify().await;
}

/// Requirement Q7.
#[tokio::test(flavor = "multi_thread")]
async fn workers_keep_their_claims_when_the_server_restarts() {
    on_both(async |fixture| restart_under_a_long_job(fixture, 10, Duration::ZERO).await).await;
}

/// Requirement Q7.
#[tokio::test(flavor = "multi_thread")]
async fn downtime_longer_than_the_lease_uses_up_no_attempt() {
    on_both(async |fixture| restart_under_a_long_job(fixture, 6, Duration::from_secs(7)).await).await;
}

/// Requirement Q7.
#[tokio::test(flavor = "multi_thread")]
async fn downtime_slightly_longer_than_a_short_lease_uses_up_no_attempt() {
    on_both(async |fixture| restart_under_a_long_job(fixture, 2, Duration::from_millis(1_900)).await).await;
}

/// Requirement Q7.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_drains_lets_its_job_finish() {
    on_both(async |fixture| {
        let server = Server::start(&fixture).await;
        let client = server.client();
        let args = ["--drain", "180s"];
        let mut work = Work::start(&fixture, &server, "q", &args, "mark running; wait_for go; echo 7");
        let id = push(&client, "q", json!(1)).await;
        running(&fixture).await;
        work.signal(Signal::TERM);
        eventually("the worker reports that it drains", async || work.stderr().contains("Draining").then_some(()))
            .await;
        std::fs::write(fixture.path("go"), "").expect("writes the file");
        assert_eq!(work.ended().await.code(), Some(0));
        let job = client.job(id).await.expect("the job exists");
        assert_eq!((job.state.as_str(), job.attempt, value(job.result.as_deref())), ("succeeded", 1, json!(7)));
    })
    .await;
}

/// Requirement Q7.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_must_stop_releases_its_job_without_using_up_an_attempt() {
    on_both(async |fixture| {
        let server = Server::start(&fixture).await;
        let client = server.client();
        let script = "trap 'mark terminated; exit 1' TERM; mark running; wait_for never";
        let args = ["--drain", "0s", "--grace", "180s"];
        let mut work = Work::start(&fixture, &server, "q", &args, script);
        let id = push(&client, "q", json!(1)).await;
        running(&fixture).await;
        assert_eq!(work.terminate().await, Some(0));
        assert!(fixture.path("terminated").exists(), "the program received SIGTERM");
        assert!(work.stderr().contains("1 released"), "{}", work.stderr());
        let job = client.job(id).await.expect("the job exists");
        assert_eq!((job.state.as_str(), job.attempt), ("queued", 0), "a released attempt does not count");
        assert!(events(&client, id).await.contains(&"released".to_owned()));

        let again = Work::start(&fixture, &server, "q", &[], "echo $WINDLASS_ATTEMPT");
        let job = ended(&client, id).await;
        assert_eq!((job.attempt, value(job.result.as_deref())), (1, json!(1)));
        drop(again);
    })
    .await;
}

/// Requirement Q7.
#[tokio::test(flavor = "multi_thread")]
async fn the_job_of_a_killed_worker_is_retried_and_the_attempt_counts() {
    on_both(async |fixture| {
        let server = Server::start(&fixture).await;
        let client = server.client();
        let mut killed = Work::start(&fixture, &server, "q", &["--lease-s", "1"], "mark running; wait_for never");
        let id = client.enqueue(&job("q", json!(1))).await.expect("the job is accepted").id;
        running(&fixture).await;
        killed.kill().await;
        let next: Program = Work::start(&fixture, &server, "q", &[], "echo $WINDLASS_ATTEMPT");
        let job = ended(&client, id).await;
        // With this short lease it may also have expired before the kill.
        let attempt = 1 + expirations(&client, id).await;
        assert!(attempt >= 2, "{:?}", events(&client, id).await);
        let actual = (job.state.as_str(), job.attempt, value(job.result.as_deref()));
        assert_eq!(actual, ("succeeded", attempt, json!(attempt)));
        drop(next);
    })
    .await;
}
