use domain::{Epoch, JobState, Refusal};
use store::jobs::settle::End;
use store::jobs::signal::{SignalChange, Signaled};
use testkit::{job, on_both};

use crate::support::*;

fn say(epoch: Epoch, state: Option<JobState>) -> SignalChange {
    SignalChange { epoch, state, ..SignalChange::default() }
}

#[tokio::test]
async fn q2_a_worker_loads_then_works_and_does_not_go_back() {
    on_both(async |db| {
        let id = push(&db.store, job("q")).await;
        let worker = register(&db.store, &["q"]).await;
        let epoch = claim_one(&db.store, worker).await.epoch;
        let signal = async |change| db.store.signal(T, id, change).await.expect("signals");
        assert_eq!(signal(say(epoch, Some(JobState::Loading))).await, Signaled::Applied);
        assert_eq!(state(&db.store, id).await, "loading");
        let progress = SignalChange { progress: Some(0.5), phase: Some("fetch".into()), ..say(epoch, None) };
        assert_eq!(signal(progress).await, Signaled::Applied);
        let read = get(&db.store, id).await;
        assert_eq!((read.state, read.progress, read.phase.as_deref()), (JobState::Loading, Some(0.5), Some("fetch")));
        assert_eq!(signal(say(epoch, Some(JobState::Working))).await, Signaled::Applied);
        let back = signal(say(epoch, Some(JobState::Loading))).await;
        assert_eq!(back, Signaled::Refused(Refusal::Illegal { state: JobState::Working }));
        assert_eq!(state(&db.store, id).await, "working");
        assert_eq!(get(&db.store, id).await.progress, Some(0.5), "what is left out stays");
        sound(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn x3_a_stale_signal_is_refused_and_changes_nothing() {
    on_both(async |db| {
        let id = push(&db.store, job("q")).await;
        let worker = register(&db.store, &["q"]).await;
        let first = claim_one(&db.store, worker).await;
        settle(&db.store, worker, id, first.epoch, End::Release).await;
        let late = || SignalChange { summary: Some("late".into()), progress: Some(0.9), ..say(first.epoch, None) };
        let signal = async |change| db.store.signal(T, id, change).await.expect("answers");
        assert_eq!(signal(late()).await, Signaled::Refused(Refusal::ClaimLost), "nobody has it");
        let second = claim_one(&db.store, worker).await;
        let version = get(&db.store, id).await.version;
        assert_eq!(signal(late()).await, Signaled::Refused(Refusal::ClaimLost), "another claim has it");
        let read = get(&db.store, id).await;
        assert_eq!((read.version, read.progress), (version, None));
        assert!(db.store.stored_signal(T, id).await.expect("reads").is_none());
        finish(&db.store, worker, &second).await;
        assert_eq!(signal(late()).await, Signaled::Refused(Refusal::ClaimLost));
        assert_eq!(signal(say(second.epoch, None)).await, Signaled::Refused(Refusal::AlreadyEnded));
        let stranger = db.store.signal(domain::TenantId(77), id, say(second.epoch, None)).await.expect("answers");
        assert_eq!(stranger, Signaled::NotFound, "X6");
    })
    .await;
}

#[tokio::test]
async fn s2_an_update_keeps_what_it_does_not_name() {
    on_both(async |db| {
        let id = push(&db.store, job("q")).await;
        let worker = register(&db.store, &["q"]).await;
        let epoch = claim_one(&db.store, worker).await.epoch;
        let first = SignalChange {
            summary: Some("pulling".into()),
            last_known_outcome: Some(r#"{"state":"failed"}"#.into()),
            eta_s: Some(12.5),
            ..say(epoch, None)
        };
        db.store.signal(T, id, first).await.expect("signals");
        let before = get(&db.store, id).await.version;
        let second = SignalChange { summary: Some("unpacking".into()), ..say(epoch, None) };
        db.store.signal(T, id, second).await.expect("signals");
        let stored = db.store.stored_signal(T, id).await.expect("reads").expect("is there");
        assert_eq!(stored.summary.as_deref(), Some("unpacking"));
        assert_eq!(stored.last_known_outcome.as_deref(), Some(r#"{"state":"failed"}"#));
        assert!(get(&db.store, id).await.version > before);
    })
    .await;
}
