//! Handlers that do not listen, and jobs that wait too long.

use super::*;

/// A worker with one slot whose handler never ends the first job and does not listen.
fn stubborn(fake: &Fake) -> Running {
    let worker = builder(fake).concurrency(1).handle("test", |job| async move {
        if job.id() == id(1) && job.job().epoch == 1 {
            std::future::pending::<()>().await;
        }
        Ok(())
    });
    Running::start(worker.build().unwrap())
}

#[tokio::test(start_paused = true)]
async fn q11_a_handler_that_does_not_listen_is_aborted_and_its_slot_comes_free() {
    let fake = Fake::default();
    let running = stubborn(&fake);
    fake.push([job(1)]);
    fake.until(|state| (!state.claimed.is_empty()).then_some(())).await;
    sleep(Duration::from_secs(1)).await;
    let asked = Instant::now();
    fake.change(|state| state.cancel.insert(id(1)));
    assert_eq!(kinds(&fake.until_settled(1).await), [OutcomeKind::Cancel]);
    assert_eq!(asked.elapsed(), Duration::from_secs(5));
    fake.push([job(2)]);
    assert_eq!(kinds(&fake.until_settled(2).await), [OutcomeKind::Cancel, OutcomeKind::Finish]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_claimed_while_no_slot_can_come_free() {
    let fake = Fake::default();
    let running = stubborn(&fake);
    fake.push([job(1)]);
    let worker = fake.until(|state| state.claimed.values().next().map(|(worker, _)| *worker)).await;
    sleep(Duration::from_secs(1)).await;
    fake.change(|state| {
        state.gone.insert(worker);
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
async fn a_job_that_waited_for_half_of_its_timeout_goes_back() {
    let fake = Fake::default();
    let worker = builder(&fake).concurrency(1).prefetch(1).handle("test", |job| async move {
        sleep(Duration::from_secs(if job.id() == id(1) { 1_000 } else { 1 })).await;
        Ok(())
    });
    let running = Running::start(worker.build().unwrap());
    fake.push([job(1), wire::ClaimedJob { timeout_s: Some(900), ..job(2) }]);
    fake.until(|state| (state.claimed.len() == 2).then_some(())).await;
    let claimed = Instant::now();
    let outcomes = fake.until_settled(1).await;
    assert_eq!((outcomes[0].job_id, outcomes[0].outcome), (id(2), OutcomeKind::Release));
    assert_eq!(claimed.elapsed(), Duration::from_secs(450));
    assert_eq!(running.stop().await.released, 2);
}

#[tokio::test(start_paused = true)]
async fn after_a_load_that_failed_the_others_of_its_affinity_go_back() {
    let fake = Fake::default();
    let loads = Arc::new(AtomicUsize::new(0));
    let seen = loads.clone();
    let worker = builder(&fake)
        .loader(move |_| {
            loads.fetch_add(1, Ordering::SeqCst);
            async { Err(HandlerError::retryable("out_of_memory", "no room")) }
        })
        .handle("test", |_| async { Ok(()) });
    let running = Running::start(worker.build().unwrap());
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
async fn a_grace_without_end_is_one() {
    let fake = Fake::default();
    let go = Arc::new(Notify::new());
    let wait = go.clone();
    let worker = builder(&fake).drain_grace(Duration::MAX).stop_grace(Duration::MAX).handle("test", move |_| {
        let wait = wait.clone();
        async move {
            wait.notified().await;
            Ok(())
        }
    });
    let mut running = Running::start(worker.build().unwrap());
    fake.push([job(1)]);
    fake.until(|state| (!state.claimed.is_empty()).then_some(())).await;
    running.shutdown.cancel();
    sleep(Duration::from_secs(3_600)).await;
    go.notify_one();
    assert_eq!(running.end().await.done, 1);
}
