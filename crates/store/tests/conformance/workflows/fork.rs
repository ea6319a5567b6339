//! Forks: a new job starts with the part of the journal before one entry.

use domain::{JobError, JobId, JobState};
use store::queue::enqueue::Idempotency;
use store::queue::settle::End;
use store::workflows::journal::fork::Forked;
use store::workflows::journal::write::{OperationInput, StepOutcome};
use store::{Caller, Store};
use testkit::{job, label, on_both};

use super::journal::{done, entries, record, step};
use crate::support::*;
use crate::triggers::declarations::assert_verified;

async fn fork(store: &Store, job: JobId, from: &str, payload: Option<&str>, key: Option<&str>) -> Forked {
    let idempotency = key.map(|key| Idempotency { key: key.into(), body_hash: [from.len() as u8; 32] });
    let by = Caller::from("operator");
    store.fork_job(T, job, label(from), payload.map(Into::into), by, idempotency).await.expect("forks")
}

fn created(forked: Forked) -> JobId {
    match forked {
        Forked::Created(created) => created.id,
        refused => panic!("{refused:?}"),
    }
}

#[tokio::test]
async fn a_fork_has_the_resolved_entries_before_the_chosen_one_and_no_other() {
    on_both(async |db| {
        let id = push(&db.store, job("q")).await;
        let worker = register_with_long_lease(&db.store).await;
        let claimed = claim_one(&db.store, worker).await;
        let open = step("open", StepOutcome::Error(JobError { retryable: true, ..boom() }));
        record(&db.store, worker, &claimed, vec![done("a", "1"), open, done("b", "2"), done("c", "3"), done("d", "4")])
            .await;
        settle(&db.store, worker, id, claimed.epoch, End::Fail(JobError { retryable: false, ..boom() })).await;
        let fork = created(fork(&db.store, id, "c", Some("7"), None).await);
        assert_eq!(entries(&db.store, fork).await, ["a 1 1", "b 2 2"]);
        assert_eq!(entries(&db.store, id).await.len(), 5, "the old journal is unchanged");
        let new = get(&db.store, fork).await;
        assert_eq!((new.state, new.payload.as_str(), new.parent), (JobState::Queued, "7", Some(id)));
        let claimed = claim_one(&db.store, worker).await;
        assert_eq!(claimed.id, fork);
        assert_eq!(claimed.journal.as_ref().map(|page| page.entries.len()), Some(2));
        record(&db.store, worker, &claimed, vec![done("b", "9"), done("c", "5")]).await;
        assert_eq!(entries(&db.store, fork).await, ["a 1 1", "b 2 2", "c 5 3"]);
        assert_verified(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn a_fork_before_the_first_entry_has_no_journal() {
    on_both(async |db| {
        let id = push(&db.store, job("q")).await;
        let worker = register_with_long_lease(&db.store).await;
        let claimed = claim_one(&db.store, worker).await;
        record(&db.store, worker, &claimed, vec![done("a", "1")]).await;
        let fork = created(fork(&db.store, id, "a", None, None).await);
        let claimed = claim_one(&db.store, worker).await;
        assert_eq!((claimed.id, claimed.journal.is_none()), (fork, true));
        assert_verified(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn a_fork_from_an_unknown_key_or_job_creates_nothing() {
    on_both(async |db| {
        let id = push(&db.store, job("q")).await;
        let worker = register_with_long_lease(&db.store).await;
        let claimed = claim_one(&db.store, worker).await;
        record(&db.store, worker, &claimed, vec![done("a", "1")]).await;
        assert_eq!(fork(&db.store, id, "z", None, None).await, Forked::NoSuchKey);
        let unknown = JobId::new(store::db::clock::new_uuid(db.clock.now()));
        assert_eq!(fork(&db.store, unknown, "a", None, None).await, Forked::NotFound);
        assert_eq!(number(&db.store, "select count(*) from jobs").await, 1);
    })
    .await;
}

#[tokio::test]
async fn a_repeated_fork_with_the_same_idempotency_key_returns_the_first() {
    on_both(async |db| {
        let id = push(&db.store, job("q")).await;
        let worker = register_with_long_lease(&db.store).await;
        let claimed = claim_one(&db.store, worker).await;
        record(&db.store, worker, &claimed, vec![done("a", "1"), done("bb", "2")]).await;
        let first = created(fork(&db.store, id, "bb", None, Some("k")).await);
        assert_eq!(created(fork(&db.store, id, "bb", None, Some("k")).await), first);
        assert_eq!(fork(&db.store, id, "a", None, Some("k")).await, Forked::KeyReused);
        assert_ne!(created(fork(&db.store, id, "bb", None, None).await), first);
        assert_eq!(number(&db.store, "select count(*) from jobs").await, 3);
        assert_verified(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn the_events_of_a_copied_entry_are_not_published_again() {
    on_both(async |db| {
        let id = push(&db.store, job("q")).await;
        let worker = register_with_long_lease(&db.store).await;
        let claimed = claim_one(&db.store, worker).await;
        let input = OperationInput::Publish { topic: label("orders"), data: "1".into() };
        let publish = store::workflows::journal::write::NewJournalOperation { key: label("p"), hash: None, input };
        record(&db.store, worker, &claimed, vec![publish.clone(), done("a", "1")]).await;
        let fork = created(fork(&db.store, id, "a", None, None).await);
        let claimed = claim_one(&db.store, worker).await;
        assert_eq!(claimed.id, fork);
        assert!(record(&db.store, worker, &claimed, vec![publish]).await[0].existing);
    })
    .await;
}
