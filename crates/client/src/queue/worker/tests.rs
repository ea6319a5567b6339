//! Tests the worker with an in-memory server. Time is paused, so that waits take no time and happen in order.

mod bounds;
mod calls;
mod fake;
mod overdue;
mod refusals;

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use wire::{OutcomeKind, OutcomeRequest};

use super::*;
use fake::{FakeServer, id, job};

/// A worker that runs in the background of a test.
struct TestRun {
    shutdown: CancellationToken,
    run: JoinSet<Result<Statistics, WorkerError>>,
}

impl TestRun {
    fn start(worker: Worker<FakeServer>) -> Self {
        let shutdown = CancellationToken::new();
        let mut run = JoinSet::new();
        let token = shutdown.clone();
        run.spawn(async move { worker.run(token).await });
        Self { shutdown, run }
    }

    async fn stop(mut self) -> Statistics {
        self.shutdown.cancel();
        self.end().await
    }

    async fn end(&mut self) -> Statistics {
        self.run.join_next().await.unwrap().unwrap().unwrap()
    }
}

fn builder(fake: &FakeServer) -> WorkerBuilder<FakeServer> {
    Worker::builder(fake.clone()).queue("default").concurrency(4)
}

fn start<F, Fut>(fake: &FakeServer, handler: F) -> TestRun
where
    F: Fn(JobContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), HandlerError>> + Send + 'static,
{
    TestRun::start(builder(fake).handle("test", handler).build().unwrap())
}

/// The outcome that the server receives for one job that `handler` runs.
async fn outcome_of<F, Fut, T>(handler: F) -> OutcomeRequest
where
    F: Fn(JobContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<T, HandlerError>> + Send + 'static,
    T: Serialize + 'static,
{
    outcome_on(job(7), handler).await
}

async fn outcome_on<F, Fut, T>(job: ClaimedJob, handler: F) -> OutcomeRequest
where
    F: Fn(JobContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<T, HandlerError>> + Send + 'static,
    T: Serialize + 'static,
{
    let fake = FakeServer::default();
    let running = TestRun::start(builder(&fake).handle("test", handler).build().unwrap());
    fake.push([job]);
    let outcome = fake.until_settled(1).await.remove(0);
    running.stop().await;
    outcome
}

fn kinds(outcomes: &[OutcomeRequest]) -> Vec<OutcomeKind> {
    outcomes.iter().map(|outcome| outcome.outcome).collect()
}

#[tokio::test(start_paused = true)]
async fn the_return_value_is_the_result_and_unit_has_none() {
    let outcome = outcome_of(|job| async move { Ok(job.payload::<u64>()? * 6) }).await;
    assert_eq!(outcome.outcome, OutcomeKind::Finish);
    assert_eq!(outcome.result.unwrap().get(), "42");
    assert!(outcome_of(|_| async { Ok(()) }).await.result.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_handler_error_is_retryable_and_includes_its_source() {
    let outcome = outcome_of(|_| async {
        Err::<(), _>(crate::ClientError::Unreachable { sent: false, source: "refused".into() })?;
        Ok(())
    });
    let error = outcome.await.error.unwrap();
    assert_eq!((error.code.as_str(), error.retryable), ("error", true));
    assert_eq!(error.message, "cannot reach the server: refused");
}

#[tokio::test(start_paused = true)]
async fn handlers_share_state_by_type() {
    let fake = FakeServer::default();
    let builder = builder(&fake).state(7_u32).state("pool".to_owned());
    let worker = builder.handle("test", |job: JobContext| async move {
        let missing = job.state::<u64>().is_err();
        Ok((*job.state::<u32>()?, job.state::<String>()?.clone(), missing))
    });
    let running = TestRun::start(worker.build().unwrap());
    fake.push([job(7)]);
    let outcome = fake.until_settled(1).await.remove(0);
    assert_eq!(outcome.result.unwrap().get(), r#"[7,"pool",true]"#);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_payload_of_the_wrong_type_fails_without_retry() {
    let outcome = outcome_of(|job| async move { job.payload::<String>() }).await;
    let error = outcome.error.unwrap();
    assert_eq!((error.code.as_str(), error.retryable), ("invalid_payload", false));
}

#[tokio::test(start_paused = true)]
async fn a_panic_fails_the_attempt_and_not_the_worker() {
    let outcome = outcome_of(|_| async { if true { panic!("out of cheese") } else { Ok(()) } }).await;
    let error = outcome.error.unwrap();
    assert_eq!((error.code.as_str(), error.message.as_str(), error.retryable), ("panic", "out of cheese", true));
}

#[tokio::test(start_paused = true)]
async fn a_snooze_sends_its_delay() {
    let outcome = outcome_of(|_| async { Err::<(), _>(HandlerError::snooze(Duration::from_millis(1500))) }).await;
    assert_eq!((outcome.outcome, outcome.delay_s), (OutcomeKind::Snooze, Some(1.5)));
}

#[tokio::test(start_paused = true)]
async fn the_concurrency_limits_running_handlers() {
    let fake = FakeServer::default();
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let seen = most.clone();
    let running = start(&fake, move |_| {
        let (now, most) = (now.clone(), most.clone());
        async move {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            sleep(Duration::from_millis(10)).await;
            now.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        }
    });
    fake.push((0..50).map(job));
    fake.until_settled(50).await;
    let statistics = running.stop().await;
    assert_eq!(seen.load(Ordering::SeqCst), 4);
    assert_eq!((statistics.claimed, statistics.done), (50, 50));
}

/// Requirement Q11.
#[tokio::test(start_paused = true)]
async fn a_cancel_reaches_the_handler_through_the_open_heartbeat() {
    let fake = FakeServer::default();
    let running = start(&fake, |job| async move {
        job.cancellation().cancelled().await;
        sleep(Duration::from_secs(3)).await;
        Ok(())
    });
    fake.push([job(1)]);
    fake.until(|state| (!state.claimed.is_empty()).then_some(())).await;
    sleep(Duration::from_secs(5)).await;
    let canceled_at = Instant::now();
    fake.change(|state| state.cancel.insert(id(1)));
    let outcomes = fake.until_settled(1).await;
    assert_eq!(kinds(&outcomes), [OutcomeKind::Cancel], "the handler's result is ignored");
    assert_eq!(canceled_at.elapsed(), Duration::from_secs(3), "it was notified immediately");
    assert_eq!(running.stop().await.canceled, 1);
}

#[tokio::test(start_paused = true)]
async fn a_prefetched_job_that_is_canceled_never_starts() {
    let fake = FakeServer::default();
    let started = Arc::new(Mutex::new(Vec::new()));
    let seen = started.clone();
    let worker = builder(&fake).concurrency(1).prefetch(2).handle("test", move |job| {
        started.lock().unwrap().push(job.id());
        async move {
            sleep(Duration::from_secs(60)).await;
            Ok(())
        }
    });
    let running = TestRun::start(worker.build().unwrap());
    fake.push((1..=3).map(job));
    fake.until(|state| (state.claimed.len() == 3).then_some(())).await;
    fake.change(|state| state.cancel.insert(id(2)));
    let outcomes = fake.until_settled(3).await;
    assert_eq!(kinds(&outcomes), [OutcomeKind::Cancel, OutcomeKind::Finish, OutcomeKind::Finish]);
    assert_eq!(*seen.lock().unwrap(), [id(1), id(3)]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn canceling_a_timed_out_attempt_does_not_cancel_the_next_attempt() {
    let fake = FakeServer::default();
    let running = start(&fake, |job| async move {
        if job.attempt() == 1 {
            job.cancellation().cancelled().await;
            sleep(Duration::from_secs(3)).await;
            return Ok(());
        }
        tokio::select! {
            () = job.cancellation().cancelled() => Err(HandlerError::cancel()),
            () = sleep(Duration::from_secs(60)) => Ok(()),
        }
    });
    fake.push([job(1)]);
    fake.until(|state| (!state.claimed.is_empty()).then_some(())).await;
    fake.change(|state| state.cancel.insert(id(1)));
    fake.push([wire::ClaimedJob { epoch: 3, attempt: 2, ..job(1) }]);
    let outcomes = fake.until_settled(2).await;
    assert_eq!(kinds(&outcomes), [OutcomeKind::Cancel, OutcomeKind::Finish]);
    assert_eq!((outcomes[0].epoch, outcomes[1].epoch), (1, 3));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_outcome_that_loses_to_a_cancel_is_followed_by_a_cancel_outcome() {
    let fake = FakeServer::default();
    fake.change(|state| state.settle_takes = Duration::from_secs(1));
    let running = start(&fake, |_| async { Ok(()) });
    fake.push([job(1)]);
    fake.until(|state| (state.settle_tries == 1).then_some(())).await;
    fake.change(|state| state.cancel.insert(id(1)));
    let outcomes = fake.until_settled(2).await;
    assert_eq!(kinds(&outcomes), [OutcomeKind::Finish, OutcomeKind::Cancel]);
    assert!(fake.change(|state| state.claimed.is_empty()));
    assert_eq!(running.stop().await.lost, 1);
}

/// Requirement Q7.
#[tokio::test(start_paused = true)]
async fn a_drain_releases_prefetched_jobs_and_waits_for_running_handlers() {
    let fake = FakeServer::default();
    let go = Arc::new(Notify::new());
    let wait = go.clone();
    let worker = builder(&fake).concurrency(1).prefetch(3).handle("test", move |_| {
        let wait = wait.clone();
        async move {
            wait.notified().await;
            Ok(())
        }
    });
    let mut running = TestRun::start(worker.build().unwrap());
    fake.push((0..4).map(job));
    fake.until(|state| (state.claimed.len() == 4).then_some(())).await;
    running.shutdown.cancel();
    assert_eq!(kinds(&fake.until_settled(3).await), [OutcomeKind::Release; 3]);
    go.notify_one();
    let statistics = running.end().await;
    assert_eq!((statistics.done, statistics.released), (1, 3));
    assert_eq!(fake.change(|state| state.deregistered.len()), 1);
}

/// Requirement Q7.
#[tokio::test(start_paused = true)]
async fn a_handler_past_the_drain_grace_is_canceled_and_its_job_is_released() {
    let fake = FakeServer::default();
    let running = start(&fake, |job| async move {
        job.cancellation().cancelled().await;
        Err(HandlerError::retryable("interrupted", ""))
    });
    fake.push([job(1)]);
    fake.until(|state| (!state.claimed.is_empty()).then_some(())).await;
    let signaled_at = Instant::now();
    assert_eq!(running.stop().await.released, 1);
    assert_eq!(signaled_at.elapsed(), Duration::from_secs(30));
}

/// Requirement Q7.
#[tokio::test(start_paused = true)]
async fn a_handler_that_ignores_cancellation_is_aborted_and_its_job_is_released() {
    let fake = FakeServer::default();
    let running = start(&fake, |_| std::future::pending());
    fake.push([job(1)]);
    fake.until(|state| (!state.claimed.is_empty()).then_some(())).await;
    let signaled_at = Instant::now();
    assert_eq!(running.stop().await.released, 1);
    assert_eq!(signaled_at.elapsed(), Duration::from_secs(35));
}

#[tokio::test(start_paused = true)]
async fn the_worker_drains_when_the_server_requests_it() {
    let fake = FakeServer::default();
    let mut running = start(&fake, |_| async { Ok(()) });
    fake.push([job(1)]);
    fake.until_settled(1).await;
    fake.change(|state| state.drain = true);
    assert_eq!(running.end().await.done, 1);
    assert_eq!(fake.change(|state| state.deregistered.len()), 1);
}

#[tokio::test(start_paused = true)]
async fn an_expired_lease_cancels_handlers_and_registers_a_new_worker() {
    let fake = FakeServer::default();
    let running = start(&fake, |job| async move {
        if job.job().epoch == 1 {
            job.cancellation().cancelled().await;
        }
        Ok(())
    });
    fake.push([job(1)]);
    let worker = fake.until(|state| state.claimed.values().next().map(|(worker, _)| *worker)).await;
    fake.change(|state| {
        state.expired.insert(worker);
        state.claimed.clear();
        state.queued.push_back(wire::ClaimedJob { epoch: 2, ..job(1) });
    });
    let outcomes = fake.until_settled(1).await;
    assert_eq!((outcomes.len(), outcomes[0].epoch), (1, 2), "the abandoned attempt reports nothing");
    assert_eq!(fake.change(|state| state.registered.len()), 2);
    let statistics = running.stop().await;
    assert_eq!((statistics.done, statistics.lost), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn an_outcome_is_sent_again_after_an_outage() {
    let fake = FakeServer::default();
    let running = start(&fake, |_| async {
        sleep(Duration::from_secs(1)).await;
        Ok(())
    });
    fake.push((0..4).map(job));
    fake.until(|state| (state.claimed.len() == 4).then_some(())).await;
    fake.change(|state| state.outage = true);
    sleep(Duration::from_secs(120)).await;
    assert!(fake.change(|state| state.settles.is_empty() && state.settle_tries > 10));
    fake.change(|state| state.outage = false);
    fake.until_settled(4).await;
    assert_eq!(running.stop().await.done, 4);
    assert_eq!(fake.change(|state| state.registered.len()), 1);
}

/// Requirement X12.
#[tokio::test(start_paused = true)]
async fn a_settle_batch_that_the_server_cannot_store_is_split() {
    let fake = FakeServer::default();
    fake.change(|state| state.max_settle_outcomes = Some(3));
    let running = TestRun::start(builder(&fake).concurrency(20).handle("test", |_| async { Ok(()) }).build().unwrap());
    fake.push((0..20).map(job));
    let outcomes = fake.until_settled(20).await;
    assert_eq!(outcomes.iter().map(|outcome| outcome.job_id).collect::<HashSet<_>>().len(), 20, "each is settled once");
    assert_eq!(running.stop().await.done, 20);
}

#[tokio::test(start_paused = true)]
async fn registration_waits_for_the_end_of_an_outage() {
    let fake = FakeServer::default();
    fake.change(|state| state.outage = true);
    let running = start(&fake, |_| async { Ok(()) });
    sleep(Duration::from_secs(60)).await;
    fake.change(|state| state.outage = false);
    fake.push([job(1)]);
    fake.until_settled(1).await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_claim_response_releases_its_jobs_by_deregistering() {
    let fake = FakeServer::default();
    fake.change(|state| state.lose_claims = 1);
    let running = start(&fake, |_| async { Ok(()) });
    fake.push([job(1)]);
    let outcomes = fake.until_settled(1).await;
    assert_eq!(outcomes[0].epoch, 2);
    assert_eq!(fake.change(|state| (state.registered.len(), state.deregistered.len())), (2, 1));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn one_refused_outcome_does_not_block_the_rest_of_the_batch() {
    let fake = FakeServer::default();
    fake.change(|state| {
        state.refused_result = Some("2".into());
        state.settle_takes = Duration::from_millis(10);
    });
    let worker = builder(&fake).handle("test", |job| async move { job.payload::<u64>() });
    let running = TestRun::start(worker.build().unwrap());
    fake.push((0..4).map(job));
    let outcomes = fake.until_settled(4).await;
    let failed: Vec<_> = outcomes.iter().filter(|outcome| outcome.outcome == OutcomeKind::Fail).collect();
    assert_eq!(failed.len(), 1);
    assert_eq!((failed[0].job_id, failed[0].error.as_ref().unwrap().code.as_str()), (id(2), "outcome_refused"));
    assert_eq!(running.stop().await.done, 3);
}

#[tokio::test(start_paused = true)]
async fn a_refused_registration_ends_the_run() {
    let fake = FakeServer::default();
    fake.change(|state| state.refuse_registration = true);
    let worker = builder(&fake).handle("test", |_| async { Ok(()) }).build().unwrap();
    let error = worker.run(CancellationToken::new()).await.unwrap_err();
    assert_eq!(error.to_string(), "the worker was rejected: rejected with forbidden");
}

#[tokio::test(start_paused = true)]
async fn signals_are_coalesced_and_the_last_one_precedes_the_outcome() {
    let fake = FakeServer::default();
    let running = start(&fake, |job| async move {
        job.phase("fetch");
        for step in 0..=1000 {
            job.progress(f64::from(step) / 1000.0);
            sleep(Duration::from_millis(1)).await;
        }
        job.phase("report");
        Err(HandlerError::retryable("boom", ""))
    });
    fake.push([job(1)]);
    fake.until_settled(1).await;
    let signals = fake.change(|state| state.signals.clone());
    assert!(signals.len() < 15, "{} signals", signals.len());
    let (of, last) = signals.last().unwrap();
    assert_eq!((*of, last.epoch, last.phase.as_deref()), (id(1), 1, Some("report")));
    assert_eq!(signals[0].1.phase.as_deref(), Some("fetch"));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_different_affinity_is_loaded_after_running_handlers_end() {
    let fake = FakeServer::default();
    let log = Arc::new(Mutex::new(Vec::new()));
    let (loads, runs) = (log.clone(), log.clone());
    let worker = builder(&fake)
        .loader(move |affinity| {
            loads.lock().unwrap().push(format!("load {affinity}"));
            async {
                sleep(Duration::from_secs(2)).await;
                Ok(())
            }
        })
        .handle("test", move |job| {
            let runs = runs.clone();
            async move {
                sleep(Duration::from_secs(1)).await;
                runs.lock().unwrap().push(format!("done {}", job.affinity().unwrap_or("any")));
                Ok(())
            }
        });
    let running = TestRun::start(worker.build().unwrap());
    let with = |number, affinity: &str| wire::ClaimedJob { affinity: Some(affinity.into()), ..job(number) };
    fake.push([with(1, "a"), with(2, "a"), with(3, "b")]);
    fake.until_settled(3).await;
    assert_eq!(*log.lock().unwrap(), ["load a", "done a", "done a", "load b", "done b"]);
    let states = fake.change(|state| state.signals.clone()).into_iter().filter(|(job, _)| *job == id(3));
    let states: Vec<_> = states.filter_map(|(_, signal)| signal.state).collect();
    assert_eq!(states, ["loading", "working"]);
    fake.until(|state| state.claims.iter().any(|claim| claim.affinity.as_deref() == Some("b")).then_some(())).await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_load_of_an_affinity_fails_its_job() {
    let fake = FakeServer::default();
    let worker = builder(&fake)
        .loader(|_| async { Err(HandlerError::retryable("out_of_memory", "out of memory")) })
        .handle("test", |_| async { Ok(()) });
    let running = TestRun::start(worker.build().unwrap());
    fake.push([wire::ClaimedJob { affinity: Some("large".into()), ..job(1) }, job(2)]);
    let outcomes = fake.until_settled(2).await;
    assert_eq!(kinds(&outcomes), [OutcomeKind::Fail, OutcomeKind::Finish]);
    assert_eq!(outcomes[0].error.as_ref().unwrap().code, "out_of_memory");
    running.stop().await;
}

#[test]
fn a_worker_registers_the_kinds_of_its_handlers() {
    let kinds = |builder: WorkerBuilder<FakeServer>| builder.build().unwrap().settings.request.kinds;
    let fake = FakeServer::default();
    let handled = || builder(&fake).handle("b", |_| async { Ok(()) }).handle("a", |_| async { Ok(()) });
    assert_eq!(kinds(handled()), Some(vec!["a".into(), "b".into()]));
    assert_eq!(kinds(handled().handle_any(|_| async { Ok(()) })), None);
    assert_eq!(kinds(builder(&fake).kinds(["c"]).handle_any(|_| async { Ok(()) })), Some(vec!["c".into()]));
    assert_eq!(builder(&fake).build().err(), Some(WorkerBuildError::NoHandler));
    assert_eq!(Worker::builder(fake.clone()).build().err(), Some(WorkerBuildError::NoQueue));
}
