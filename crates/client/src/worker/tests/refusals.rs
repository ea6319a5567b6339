//! What is no refusal of an outcome, and signals that a server did not take.

use super::*;

async fn spared(status: u16, code: &'static str) {
    let fake = Fake::default();
    fake.change(|state| state.settle_problem = Some((status, code)));
    let _running = start(&fake, |_| async { Ok(()) });
    fake.push([job(1)]);
    fake.until(|state| (state.settle_tries >= 2).then_some(())).await;
    fake.change(|state| state.settle_problem = None);
    assert_eq!(kinds(&fake.until_settled(1).await), [OutcomeKind::Finish], "{status} {code}");
}

#[tokio::test(start_paused = true)]
async fn only_what_is_said_of_an_outcome_costs_its_success() {
    spared(404, "no_such_route").await;
    spared(405, "method_not_allowed").await;
    spared(403, "forbidden").await;
    spared(422, "limit_reached").await;
}

#[tokio::test(start_paused = true)]
async fn what_was_said_during_an_outage_is_told_after_it() {
    let fake = Fake::default();
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
    let told = fake.change(|state| state.signals.clone());
    let told: Vec<_> = told.iter().map(|(_, signal)| (signal.phase.as_deref(), signal.progress)).collect();
    assert_eq!(told, [(Some("fetch"), Some(0.5))]);
    running.stop().await;
}
