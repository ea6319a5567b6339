//! Rejections that do not concern an outcome, and signals that the server did not accept.

use super::*;

async fn check_retried(status: u16, code: &'static str) {
    let fake = FakeServer::default();
    fake.change(|state| state.settle_problem = Some((status, code)));
    let _running = start(&fake, |_| async { Ok(()) });
    fake.push([job(1)]);
    fake.until(|state| (state.settle_tries >= 2).then_some(())).await;
    fake.change(|state| state.settle_problem = None);
    assert_eq!(kinds(&fake.until_settled(1).await), [OutcomeKind::Finish], "{status} {code}");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_that_does_not_concern_the_outcome_is_retried() {
    check_retried(404, "no_such_route").await;
    check_retried(405, "method_not_allowed").await;
    check_retried(403, "forbidden").await;
    check_retried(422, "limit_reached").await;
}

#[tokio::test(start_paused = true)]
async fn a_signal_lost_in_an_outage_is_sent_again_with_its_latest_values() {
    let fake = FakeServer::default();
    fake.change(|state| state.lose_signals = true);
    let running = start(&fake, |job| async move {
        job.phase("fetch");
        job.progress(0.25);
        sleep(Duration::from_secs(1)).await;
        job.progress(0.5);
        sleep(Duration::from_secs(60)).await;
        Ok(())
    });
    fake.push([job(1)]);
    fake.until(|state| (!state.claimed.is_empty()).then_some(())).await;
    sleep(Duration::from_secs(20)).await;
    fake.change(|state| state.lose_signals = false);
    fake.until_settled(1).await;
    let signals = fake.change(|state| state.signals.clone());
    let sent: Vec<_> = signals.iter().map(|(_, signal)| (signal.phase.as_deref(), signal.progress)).collect();
    assert_eq!(sent, [(Some("fetch"), Some(0.5))]);
    running.stop().await;
}
