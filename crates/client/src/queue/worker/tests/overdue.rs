//! Handlers that ignore cancellation, and jobs that wait too long.

use super::*;

/// A worker with one slot. Its handler never returns from the first job and ignores cancellation.
fn stubborn(fake: &FakeServer) -> TestRun {
    let worker = builder(fake).concurrency(1).handle("test", |job| async move {
        if job.id() == id(1) && job.job().epoch == 1 {
            std::future::pending::<()>().await;
        }
        Ok(())
    });
    TestRun::start(worker.build().unwrap())
}

/// Requirement Q11.
#[tokio::test(start_paused = true)]
async fn a_handler_that_ignores_a_cancel_is_aborted_and_frees_its_slot() {
    let fake = FakeServer::default();
    let running = stubborn(&fake);
    fake.push([job(1)]);
    fake.until(|state| (!state.claimed.is_empty()).then_some(())).await;
    sleep(Duration::from_secs(1)).await;
    let canceled_at = Instant::now();
    fake.change(|state| state.cancel.insert(id(1)));
    assert_eq!(kinds(&fake.until_settled(1).await), [OutcomeKind::Cancel]);
    assert_eq!(canceled_at.elapsed(), Duration::from_secs(5));
    fake.push([job(2)]);
    assert_eq!(kinds(&fake.until_settled(2).await), [OutcomeKind::Cancel, OutcomeKind::Finish]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn no_claim_is_sent_while_overdue_handlers_occupy_all_slots() {
    let fake = FakeServer::default();
    let running = stubborn(&fake);
    fake.push([job(1)]);
    let worker = fake.until(|state| state.claimed.values().next().map(|(worker, _)| *worker)).await;
    sleep(Duration::from_secs(1)).await;
    fake.change(|state| {
        state.expired.insert(worker);
        state.claimed.clear();
    });
    fake.until(|state| (state.registered.len() == 2).then_some(())).await;
    let claims = fake.change(|state| state.claims.len());
    let lost = Instant::now();
    fake.push([wire::ClaimedJob { epoch: 2, ..job(1) }]);
    sleep(Duration::from_secs(4)).await;
    assert_eq!(fake.change(|state| state.claims.len()), claims);
    assert_eq!(fake.until_settled(1).await[0].epoch, 2);
    assert_eq!(lost.elapsed(), Duration::from_secs(5));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_prefetched_job_is_released_after_half_of_its_timeout() {
    let fake = FakeServer::default();
    let worker = builder(&fake).concurrency(1).prefetch(1).handle("test", |job| async move {
        sleep(Duration::from_secs(if job.id() == id(1) { 1_000 } else { 1 })).await;
        Ok(())
    });
    let running = TestRun::start(worker.build().unwrap());
    fake.push([job(1), wire::ClaimedJob { timeout_s: Some(900), ..job(2) }]);
    fake.until(|state| (state.claimed.len() == 2).then_some(())).await;
    let claimed = Instant::now();
    let outcomes = fake.until_settled(1).await;
    assert_eq!((outcomes[0].job_id, outcomes[0].outcome), (id(2), OutcomeKind::Release));
    assert_eq!(claimed.elapsed(), Duration::from_secs(450));
    assert_eq!(running.stop().await.released, 2);
}

#[tokio::test(start_paused = true)]
async fn a_failed_load_releases_the_other_jobs_of_the_affinity() {
    let fake = FakeServer::default();
    let loads = Arc::new(AtomicUsize::new(0));
    let seen = loads.clone();
    let worker = builder(&fake)
        .loader(move |_| {
            loads.fetch_add(1, Ordering::SeqCst);
            async { Err(HandlerError::retryable("out_of_memory", "out of memory")) }
        })
        .handle("test", |_| async { Ok(()) });
    let running = TestRun::start(worker.build().unwrap());
    let large = |number| wire::ClaimedJob { affinity: Some("large".into()), ..job(number) };
    fake.push([large(1), large(2), job(3), large(4)]);
    let mut outcomes = fake.until_settled(4).await;
    outcomes.sort_by_key(|outcome| outcome.job_id);
    let (fail, release, finish) = (OutcomeKind::Fail, OutcomeKind::Release, OutcomeKind::Finish);
    assert_eq!(kinds(&outcomes), [fail, release, finish, release]);
    assert_eq!(seen.load(Ordering::SeqCst), 1);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_maximum_grace_never_elapses() {
    let fake = FakeServer::default();
    let go = Arc::new(Notify::new());
    let wait = go.clone();
    let worker = builder(&fake).drain_grace(Duration::MAX).stop_grace(Duration::MAX).handle("test", move |_| {
        let wait = wait.clone();
        async move {
            wait.notified().await;
            Ok(())
        }
    });
    let mut running = TestRun::start(worker.build().unwrap());
    fake.push([job(1)]);
    fake.until(|state| (!state.claimed.is_empty()).then_some(())).await;
    running.shutdown.cancel();
    sleep(Duration::from_secs(3_600)).await;
    go.notify_one();
    assert_eq!(running.end().await.done, 1);
}
