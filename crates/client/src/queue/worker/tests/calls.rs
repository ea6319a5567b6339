//! The number and size of calls in flight.

use super::*;

#[tokio::test(start_paused = true)]
async fn outcomes_that_arrive_during_a_settle_share_the_next_batch() {
    let fake = FakeServer::default();
    fake.change(|state| state.settle_takes = Duration::from_millis(50));
    fake.push((0..400).map(job));
    let worker = builder(&fake).concurrency(100).handle("test", |_| async { Ok(()) }).build().unwrap();
    let running = TestRun::start(worker);
    fake.until_settled(400).await;
    let settles = fake.change(|state| state.settles.len());
    assert!(settles <= 5, "{settles} settles");
    assert_eq!(running.stop().await.done, 400);
}

#[tokio::test(start_paused = true)]
async fn a_large_settle_batch_is_sent_while_another_is_in_flight() {
    let fake = FakeServer::default();
    fake.change(|state| state.settle_takes = Duration::from_millis(50));
    fake.push((0..3_500).map(job));
    let worker = builder(&fake).concurrency(1_000).prefetch(4_000).handle("test", |_| async { Ok(()) });
    let began = Instant::now();
    let running = TestRun::start(worker.build().unwrap());
    let settled = fake.until_settled(3_500).await;
    assert_eq!(
        settled.iter().map(|outcome| outcome.job_id).collect::<HashSet<_>>().len(),
        3_500,
        "each is settled once"
    );
    let sizes = fake.change(|state| state.settles.iter().map(Vec::len).collect::<Vec<_>>());
    assert!(sizes.iter().any(|size| *size >= 1_000), "{sizes:?}");
    // Sequential settles would take 50 ms each.
    assert!(began.elapsed() < Duration::from_millis(50) * sizes.len() as u32, "{:?} for {sizes:?}", began.elapsed());
    assert_eq!(running.stop().await.done, 3_500);
}

#[tokio::test(start_paused = true)]
async fn a_settle_batch_is_limited_to_the_servers_maximum() {
    let fake = FakeServer::default();
    fake.change(|state| state.settle_takes = Duration::from_millis(50));
    fake.push((0..9_000).map(job));
    let worker = builder(&fake).concurrency(10_000).prefetch(8_000).handle("test", |_| async { Ok(()) });
    let running = TestRun::start(worker.build().unwrap());
    let settled = fake.until_settled(9_000).await;
    assert_eq!(
        settled.iter().map(|outcome| outcome.job_id).collect::<HashSet<_>>().len(),
        9_000,
        "each is settled once"
    );
    let sizes = fake.change(|state| state.settles.iter().map(Vec::len).collect::<Vec<_>>());
    assert_eq!(sizes.iter().max(), Some(&4_000), "{sizes:?}");
    assert_eq!(running.stop().await.done, 9_000);
}

#[tokio::test(start_paused = true)]
async fn a_claim_requests_a_quarter_of_the_prefetch_within_bounds() {
    for (prefetch, expected) in [(0, 100), (4_000, 1_000), (6_000, 1_500), (10_000, 2_000)] {
        let fake = FakeServer::default();
        let worker = builder(&fake).concurrency(100).prefetch(prefetch).handle("test", |_| async { Ok(()) });
        let running = TestRun::start(worker.build().unwrap());
        assert_eq!(fake.until(|state| state.claims.first().map(|claim| claim.max)).await, expected);
        running.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_second_claim_is_in_flight_only_after_a_full_claim() {
    let fake = FakeServer::default();
    fake.push((0..1_000).map(job));
    let worker = builder(&fake).concurrency(1_000).prefetch(2_000).handle("test", |_| async { Ok(()) });
    let running = TestRun::start(worker.build().unwrap());
    fake.until_settled(1_000).await;
    // The first claim was full, so two claims wait for more; afterwards one is enough.
    fake.until(|state| (state.claims.len() == 3).then_some(())).await;
    for (number, claims) in [(1_000, 3), (1_001, 4), (1_002, 5)] {
        fake.push([job(number)]);
        fake.until_settled(number as usize + 1).await;
        assert_eq!(fake.change(|state| state.claims.len()), claims);
    }
    assert!(fake.change(|state| state.claims.iter().all(|claim| claim.max == 1_000)));
    assert_eq!(running.stop().await.done, 1_003);
}

#[tokio::test(start_paused = true)]
async fn jobs_are_prefetched_while_handlers_run() {
    let fake = FakeServer::default();
    let running = start(&fake, |job| async move {
        job.cancellation().cancelled().await;
        Ok(())
    });
    fake.push((0..8).map(job));
    // Four jobs run and never end; four more are prefetched.
    fake.until(|state| (state.claimed.len() == 8).then_some(())).await;
    assert_eq!(fake.change(|state| state.claims[0].max), 8);
    running.stop().await;
}
