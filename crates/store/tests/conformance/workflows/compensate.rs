//! Cancel with undo: the job runs once more with the cancel in its journal.

use domain::{JobId, JobState};
use store::Store;
use store::queue::cancel::Canceled;
use store::queue::settle::{End, SettleStatus};
use store::workflows::journal::Wake;
use store::workflows::journal::fork::Forked;
use store::workflows::journal::write::{NewJournalOperation, OperationInput, SleepEnd};
use testkit::{job, label, on_both};

use super::journal::{done, entries, record};
use crate::support::*;
use crate::triggers::declarations::assert_verified;

async fn compensate(store: &Store, job: JobId) -> Canceled {
    store.cancel_with_undo(T, job, "operator".into()).await.expect("cancels")
}

#[tokio::test]
async fn a_suspended_job_resumes_once_to_undo_its_steps_and_ends_as_canceled() {
    on_both(async |db| {
        let id = push(&db.store, job("q")).await;
        let worker = register_with_long_lease(&db.store).await;
        let claimed = claim_one(&db.store, worker).await;
        let nap = OperationInput::Sleep { until: SleepEnd::After { delay_ms: 60_000 } };
        let nap = NewJournalOperation { key: label("nap"), hash: None, input: nap };
        record(&db.store, worker, &claimed, vec![done("book", "1"), nap]).await;
        let wake = Wake { keys: vec![label("nap")], count: 1 };
        settle(&db.store, worker, id, claimed.epoch, End::Suspend(wake)).await;
        assert_eq!(compensate(&db.store, id).await, Canceled::Compensating(id, JobState::Queued));
        assert_eq!(compensate(&db.store, id).await, Canceled::Compensating(id, JobState::Queued), "idempotent");
        assert_verified(&db.store).await;
        let resumed = claim_one(&db.store, worker).await;
        let page = resumed.journal.as_ref().expect("has a journal");
        let cancel = page.entries.last().expect("has entries");
        assert_eq!((cancel.key.as_str(), cancel.seq), ("$cancel", Some(2)));
        assert!(cancel.result.as_deref().is_some_and(|result| result.starts_with(r#"{"by":"operator","at":"#)));
        record(&db.store, worker, &resumed, vec![done("undo/book", "1")]).await;
        db.pass_ms(60_001).await;
        db.store.resolve_waits().await.expect("resolves");
        assert_eq!(state(&db.store, id).await, "working", "the sleep does not wake it again");
        let status = settle(&db.store, worker, id, resumed.epoch, End::Cancel).await;
        assert_eq!((status, state(&db.store, id).await.as_str()), (SettleStatus::Applied, "canceled"));
        assert_eq!(compensate(&db.store, id).await, Canceled::Canceled(id));
        let forked = db.store.fork_job(T, id, label("undo/book"), None, store::Caller::from("me"), None).await;
        let Forked::Created(fork) = forked.expect("forks") else { panic!("not forked") };
        let kept = entries(&db.store, fork.id).await;
        assert_eq!(kept.iter().map(|entry| entry.split(' ').next()).collect::<Vec<_>>(), [Some("book"), Some("nap")]);
        assert_counters_match(&db.store).await;
        assert_verified(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn a_working_job_is_taken_from_its_worker_to_undo_its_steps() {
    on_both(async |db| {
        let id = push(&db.store, job("q")).await;
        let worker = register_with_long_lease(&db.store).await;
        let claimed = claim_one(&db.store, worker).await;
        record(&db.store, worker, &claimed, vec![done("book", "1")]).await;
        assert_eq!(compensate(&db.store, id).await, Canceled::Compensating(id, JobState::Queued));
        assert_verified(&db.store).await;
        let write = super::journal::write(&claimed, vec![done("pay", "2")]);
        let late = super::journal::journal(&db.store, worker, vec![write]).await;
        assert!(format!("{late:?}").contains("ClaimLost"), "the old attempt records nothing more: {late:?}");
        assert_eq!(finish(&db.store, worker, &claimed).await, SettleStatus::ClaimLost);
        let resumed = claim_one(&db.store, worker).await;
        assert_eq!((resumed.id, resumed.attempt), (id, 1), "the attempt is given back");
        assert!(resumed.epoch > claimed.epoch);
        assert_eq!(db.store.cancel(T, id, "operator".into()).await.expect("cancels"), Canceled::Canceled(id));
        assert_counters_match(&db.store).await;
        assert_verified(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn a_job_without_a_journal_has_nothing_to_undo() {
    on_both(async |db| {
        let id = push(&db.store, job("q")).await;
        assert_eq!(compensate(&db.store, id).await, Canceled::Canceled(id));
        assert_eq!(state(&db.store, id).await, "canceled");
        assert_counters_match(&db.store).await;
    })
    .await;
}
