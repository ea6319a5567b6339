//! The journal: a step is recorded once, by the holder of the claim alone, and returned to the next attempt.

use domain::limits::{JOURNAL_BYTES, JOURNAL_ENTRIES, JOURNAL_PAGE_BYTES, RETENTION_DEFAULT_S};
use domain::triggers::trigger::Source;
use domain::workflows::journal::JournalError;
use domain::{Epoch, JobError, JobId, WorkerId};
use store::Store;
use store::queue::claim::ClaimedJob;
use store::queue::settle::{End, SettleStatus};
use store::workflows::journal::read::JournalPage;
use store::workflows::journal::write::{
    JournalWrite, Journaled, NewJournalOperation, OperationInput, RecordedEntry, StepOutcome,
};
use testkit::{job, label, on_both};

use crate::support::*;
use crate::triggers::declarations::{assert_verified, create, new, waiting};

pub(super) fn step(key: &str, outcome: StepOutcome) -> NewJournalOperation {
    NewJournalOperation {
        key: label(key),
        hash: None,
        input: OperationInput::Step { outcome, attempt: None, duration_ms: None },
    }
}

pub(super) fn done(key: &str, result: &str) -> NewJournalOperation {
    step(key, StepOutcome::Result(result.into()))
}

fn hashed(key: &str, hash: &str) -> NewJournalOperation {
    NewJournalOperation { hash: Some(hash.into()), ..done(key, "1") }
}

fn failed(key: &str, attempt: i64, retryable: bool) -> NewJournalOperation {
    let outcome = StepOutcome::Error(JobError { retryable, ..boom() });
    let input = OperationInput::Step { outcome, attempt: Some(attempt), duration_ms: Some(7) };
    NewJournalOperation { key: label(key), hash: None, input }
}

fn publish(key: &str, topic: &str) -> NewJournalOperation {
    let input = OperationInput::Publish { topic: label(topic), data: r#"{"n":1}"#.into() };
    NewJournalOperation { key: label(key), hash: None, input }
}

pub(super) fn write(claimed: &ClaimedJob, ops: Vec<NewJournalOperation>) -> JournalWrite {
    JournalWrite { job: claimed.id, epoch: claimed.epoch, strict: false, ops }
}

pub(super) async fn journal(store: &Store, worker: WorkerId, writes: Vec<JournalWrite>) -> Journaled {
    store.journal(T, worker, writes).await.expect("writes")
}

/// Records operations of one claimed job. Returns the answers.
pub(crate) async fn record(
    store: &Store,
    worker: WorkerId,
    claimed: &ClaimedJob,
    ops: Vec<NewJournalOperation>,
) -> Vec<RecordedEntry> {
    match journal(store, worker, vec![write(claimed, ops)]).await {
        Journaled::Results(mut results) => {
            let result = results.remove(0);
            assert_eq!(result.status, SettleStatus::Applied);
            result.entries
        }
        refused => panic!("{refused:?}"),
    }
}

async fn refused(store: &Store, worker: WorkerId, claimed: &ClaimedJob, ops: Vec<NewJournalOperation>) -> JournalError {
    match journal(store, worker, vec![write(claimed, ops)]).await {
        Journaled::Refused { error, .. } => error,
        other => panic!("{other:?}"),
    }
}

/// The keys of a journal in order, with result or error and place of resolution.
pub(super) async fn entries(store: &Store, job: JobId) -> Vec<String> {
    let (_, page) = store.read_journal(T, job, 0, 1_000).await.expect("reads");
    lines(&page)
}

fn lines(page: &JournalPage) -> Vec<String> {
    let line = |entry: &store::workflows::journal::JournalEntry| {
        let outcome = match (&entry.result, &entry.error) {
            (Some(result), None) => result.clone(),
            (None, Some(error)) => error.code.clone(),
            (None, None) => format!("open after {}", entry.attempt),
            both => panic!("{both:?}"),
        };
        format!("{} {outcome} {}", entry.key, entry.seq.unwrap_or(0))
    };
    page.entries.iter().map(line).collect()
}

async fn worker_with_job(store: &Store) -> (WorkerId, ClaimedJob) {
    push(store, job("q")).await;
    let worker = register_with_long_lease(store).await;
    let claimed = claim_one(store, worker).await;
    (worker, claimed)
}

/// Guarantee 1 of workflows.
#[tokio::test]
async fn a_recorded_step_is_returned_to_the_next_attempt() {
    on_both(async |db| {
        push(&db.store, job("q")).await;
        let dead = register(&db.store, &["q"]).await;
        let claimed = claim_one(&db.store, dead).await;
        assert!(claimed.journal.is_none(), "a job without steps has no journal");
        record(&db.store, dead, &claimed, vec![done("a", r#"{"n":1}"#), failed("b", 1, false)]).await;
        db.pass_ms(60_000).await;
        db.store.sweep().await.expect("sweeps");
        let worker = register(&db.store, &["q"]).await;
        let again = claim_one(&db.store, worker).await;
        let page = again.journal.as_ref().expect("the job has a journal");
        assert_eq!(lines(page), [r#"a {"n":1} 1"#, "b boom 2"]);
        assert_eq!(page.next, None);
        assert_verified(&db.store).await;
    })
    .await;
}

/// Guarantee 1 of workflows.
#[tokio::test]
async fn the_first_record_of_a_key_counts() {
    on_both(async |db| {
        let (worker, claimed) = worker_with_job(&db.store).await;
        let first = record(&db.store, worker, &claimed, vec![done("a", "1"), done("a", "2"), done("b", "3")]).await;
        assert_eq!(first.iter().map(|answer| answer.existing).collect::<Vec<_>>(), [false, true, false]);
        assert_eq!(first[1].entry.result.as_deref(), Some("1"), "the same request already recorded the key");
        let second = record(&db.store, worker, &claimed, vec![failed("a", 9, false), done("b", "4")]).await;
        assert!(second.iter().all(|answer| answer.existing));
        assert_eq!(second[0].entry.result.as_deref(), Some("1"));
        assert_eq!(second[1].entry.result.as_deref(), Some("3"));
        assert_eq!(entries(&db.store, claimed.id).await, ["a 1 1", "b 3 2"]);
        assert_verified(&db.store).await;
    })
    .await;
}

/// Guarantee 1 of workflows.
#[tokio::test]
async fn concurrent_records_of_one_key_have_one_answer() {
    on_both(async |db| {
        let (worker, claimed) = worker_with_job(&db.store).await;
        let other = if db.store.is_postgres() { db.another_node().await } else { db.store.clone() };
        let attempts = (0..40).map(|number| {
            let store = if number % 2 == 0 { &db.store } else { &other };
            let claimed = &claimed;
            async move { record(store, worker, claimed, vec![done("a", &number.to_string())]).await.remove(0) }
        });
        let answers = futures_util::future::join_all(attempts).await;
        assert_eq!(answers.iter().filter(|answer| !answer.existing).count(), 1);
        let recorded = entries(&db.store, claimed.id).await;
        assert_eq!(recorded.len(), 1);
        for answer in answers.iter().filter(|answer| answer.existing) {
            assert_eq!(recorded, [format!("a {} 1", answer.entry.result.as_deref().expect("resolved"))]);
        }
        assert_verified(&db.store).await;
    })
    .await;
}

/// Guarantee 3 of workflows.
#[tokio::test]
async fn a_worker_without_the_claim_records_nothing() {
    on_both(async |db| {
        let (worker, claimed) = worker_with_job(&db.store).await;
        let other = register(&db.store, &["q"]).await;
        let status = async |worker: WorkerId, job: JobId, epoch: i64| {
            let write = JournalWrite { job, epoch: Epoch(epoch), strict: false, ops: vec![done("stale", "1")] };
            match journal(&db.store, worker, vec![write]).await {
                Journaled::Results(results) => {
                    assert_eq!(results[0].entries, []);
                    results[0].status
                }
                other => panic!("{other:?}"),
            }
        };
        let (id, epoch) = (claimed.id, claimed.epoch.0);
        for stale in [epoch - 1, epoch + 1] {
            assert_eq!(status(worker, id, stale).await, SettleStatus::ClaimLost);
        }
        assert_eq!(status(other, id, epoch).await, SettleStatus::ClaimLost);
        let unknown = JobId::new(store::db::clock::new_uuid(db.clock.now()));
        assert_eq!(status(worker, unknown, 1).await, SettleStatus::NotFound);
        settle(&db.store, worker, id, claimed.epoch, End::Release).await;
        assert_eq!(status(worker, id, epoch).await, SettleStatus::ClaimLost, "the job is queued again");
        let again = claim_one(&db.store, other).await;
        assert_eq!(status(worker, id, epoch).await, SettleStatus::ClaimLost, "another worker has the job");
        finish(&db.store, other, &again).await;
        assert_eq!(status(other, id, again.epoch.0).await, SettleStatus::AlreadyEnded);
        assert_eq!(status(worker, id, epoch).await, SettleStatus::ClaimLost);
        assert_eq!(entries(&db.store, id).await, Vec::<String>::new());
        let stranger = WorkerId::new(unknown.uuid());
        let nothing = journal(&db.store, stranger, vec![write(&claimed, vec![done("a", "1")])]).await;
        assert_eq!(nothing, Journaled::NoSuchWorker);
        assert_verified(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn a_retryable_error_is_an_attempt_and_not_the_result() {
    on_both(async |db| {
        let (worker, claimed) = worker_with_job(&db.store).await;
        for attempt in [1, 2, 2, 1] {
            let answers = record(&db.store, worker, &claimed, vec![failed("a", attempt, true)]).await;
            assert_eq!((answers[0].existing, answers[0].entry.seq), (false, None));
        }
        assert_eq!(entries(&db.store, claimed.id).await, ["a open after 2 0"]);
        record(&db.store, worker, &claimed, vec![done("a", "1")]).await;
        assert_eq!(entries(&db.store, claimed.id).await, ["a 1 1"]);
        let (_, page) = db.store.read_journal(T, claimed.id, 0, 10).await.expect("reads");
        let attempts: Vec<(i64, &str)> =
            page.entries[0].attempts.iter().map(|failed| (failed.attempt, failed.code.as_str())).collect();
        assert_eq!((attempts.as_slice(), page.entries[0].attempt), (&[(1, "boom"), (2, "boom")][..], 3));
        assert_verified(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn an_event_is_published_once_in_the_commit_of_its_record() {
    on_both(async |db| {
        create(&db.store, new("t", Source::Pubsub, r#"{"topic": "orders"}"#)).await;
        let (worker, claimed) = worker_with_job(&db.store).await;
        let answers = record(&db.store, worker, &claimed, vec![publish("p", "orders"), publish("p", "orders")]).await;
        assert_eq!((answers[0].existing, answers[1].existing), (false, true));
        record(&db.store, worker, &claimed, vec![publish("p", "orders")]).await;
        assert_eq!(waiting(&db.store).await.len(), 1);
        let too_late = JournalWrite { epoch: Epoch(0), ..write(&claimed, vec![publish("q", "orders")]) };
        journal(&db.store, worker, vec![too_late]).await;
        let refused = vec![publish("r", "orders"), done("p", "1")];
        assert!(matches!(
            journal(&db.store, worker, vec![write(&claimed, refused)]).await,
            Journaled::Refused { write: 0, op: 1, error: JournalError::OtherOperation { .. } }
        ));
        assert_eq!(waiting(&db.store).await.len(), 1, "what is not recorded is not published");
        assert_verified(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn a_refused_operation_leaves_the_whole_request_unrecorded() {
    on_both(async |db| {
        push_all(&db.store, vec![job("q"), job("q")]).await;
        let worker = register(&db.store, &["q"]).await;
        let jobs = claim(&db.store, worker, 2).await;
        record(&db.store, worker, &jobs[0], vec![hashed("a", "x"), failed("open", 1, true)]).await;
        let strict = JournalWrite { strict: true, ..write(&jobs[0], vec![done("open", "1"), hashed("a", "y")]) };
        let writes = vec![write(&jobs[1], vec![done("b", "1")]), strict];
        let drift = JournalError::Drift { recorded: "x".into(), met: "y".into() };
        assert_eq!(journal(&db.store, worker, writes).await, Journaled::Refused { write: 1, op: 1, error: drift });
        assert_eq!(entries(&db.store, jobs[0].id).await, ["a 1 1", "open open after 1 0"]);
        assert_eq!(entries(&db.store, jobs[1].id).await, Vec::<String>::new());
        assert_verified(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn another_digest_is_a_warning_unless_the_worker_is_strict() {
    on_both(async |db| {
        let (worker, claimed) = worker_with_job(&db.store).await;
        record(&db.store, worker, &claimed, vec![hashed("a", "x"), hashed("b", "x")]).await;
        record(&db.store, worker, &claimed, vec![hashed("a", "x"), done("b", "1")]).await;
        let warnings = async || db.store.read_journal(T, claimed.id, 0, 10).await.expect("reads").0.warnings();
        assert_eq!(warnings().await, Vec::<String>::new());
        let answers = record(&db.store, worker, &claimed, vec![hashed("b", "y"), hashed("a", "y")]).await;
        assert!(answers.iter().all(|answer| answer.existing && answer.entry.result.as_deref() == Some("1")));
        let warnings = warnings().await;
        assert!(warnings[0].starts_with("the step b was recorded with another input"), "{warnings:?}");
        assert_verified(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn a_full_journal_refuses_a_new_entry_and_answers_a_recorded_one() {
    on_both(async |db| {
        let (worker, claimed) = worker_with_job(&db.store).await;
        let mut next = 0;
        while next < JOURNAL_ENTRIES {
            let until = (next + 1_000).min(JOURNAL_ENTRIES);
            let ops = (next..until).map(|number| done(&format!("s{number}"), "1")).collect();
            record(&db.store, worker, &claimed, ops).await;
            next = until;
        }
        let error = refused(&db.store, worker, &claimed, vec![done("s0", "1"), done("one more", "1")]).await;
        assert_eq!(error, JournalError::TooManyEntries);
        let answers = record(&db.store, worker, &claimed, vec![done("s0", "2")]).await;
        assert_eq!(answers[0].entry.result.as_deref(), Some("1"));
        let (head, _) = db.store.read_journal(T, claimed.id, 0, 10).await.expect("reads");
        assert_eq!(head.size.entries, JOURNAL_ENTRIES);
        assert_eq!(head.warnings(), ["the journal has 10000 of at most 10000 entries"]);
        assert_verified(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn a_journal_has_a_maximum_size() {
    on_both(async |db| {
        let (worker, claimed) = worker_with_job(&db.store).await;
        record(&db.store, worker, &claimed, vec![done("a", "1")]).await;
        let full = |bytes: i64| format!("update journals set bytes = {bytes}");
        run_sql(&db.store, &full(JOURNAL_BYTES - 5)).await.expect("updates");
        let error = refused(&db.store, worker, &claimed, vec![done("b", "123456")]).await;
        assert_eq!(error, JournalError::TooManyBytes { bytes: JOURNAL_BYTES + 2 });
        record(&db.store, worker, &claimed, vec![done("b", "1234")]).await;
        assert_eq!(entries(&db.store, claimed.id).await, ["a 1 1", "b 1234 2"]);
    })
    .await;
}

#[tokio::test]
async fn a_large_journal_is_read_in_pages() {
    on_both(async |db| {
        let (worker, claimed) = worker_with_job(&db.store).await;
        let large = format!("\"{}\"", "x".repeat(1_000_000));
        for number in 0..10 {
            record(&db.store, worker, &claimed, vec![done(&format!("large/{number}"), &large)]).await;
        }
        let keys: Vec<String> = (0..10).map(|number| format!("large/{number}")).collect();
        let answers = refused(&db.store, worker, &claimed, keys.iter().map(|key| done(key, "1")).collect()).await;
        assert_eq!(answers, JournalError::AnswerTooLarge { max: JOURNAL_PAGE_BYTES });
        settle(&db.store, worker, claimed.id, claimed.epoch, End::Release).await;
        let again = claim_one(&db.store, worker).await;
        let mut page = again.journal.expect("the job has a journal");
        let mut read: Vec<String> = Vec::new();
        let mut sizes = Vec::new();
        loop {
            sizes.push(page.entries.len());
            read.extend(page.entries.iter().map(|entry| entry.key.to_string()));
            let Some(next) = page.next else { break };
            page = db.store.read_journal(T, claimed.id, next, 500).await.expect("reads").1;
        }
        assert_eq!((read, sizes), (keys, vec![8, 2]));
        let (_, one) = db.store.read_journal(T, claimed.id, 3, 1).await.expect("reads");
        assert_eq!((one.entries[0].key.as_str(), one.next), ("large/3", Some(4)));
    })
    .await;
}

/// On PostgreSQL the later claims use the single statement.
#[tokio::test]
async fn every_claim_returns_the_journal_and_only_of_jobs_that_have_one() {
    on_both(async |db| {
        let worker = register_with_long_lease(&db.store).await;
        for round in 0..4 {
            push_all(&db.store, vec![job("q"), job("q")]).await;
            let jobs = claim(&db.store, worker, 2).await;
            assert!(jobs.iter().all(|job| job.journal.is_none()));
            record(&db.store, worker, &jobs[1], vec![done("a", "1")]).await;
            for job in &jobs {
                settle(&db.store, worker, job.id, job.epoch, End::Release).await;
            }
            let jobs = claim(&db.store, worker, 2).await;
            let journals: Vec<usize> =
                jobs.iter().map(|job| job.journal.as_ref().map_or(0, |page| page.entries.len())).collect();
            assert_eq!(journals, [0, 1], "round {round}");
            for job in &jobs {
                assert_eq!(
                    settle(&db.store, worker, job.id, job.epoch, End::Finish(None)).await,
                    SettleStatus::Applied
                );
            }
        }
        assert_counters_match(&db.store).await;
        assert_verified(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn a_journal_is_pruned_with_its_job() {
    on_both(async |db| {
        let (worker, claimed) = worker_with_job(&db.store).await;
        record(&db.store, worker, &claimed, vec![done("a", "1")]).await;
        finish(&db.store, worker, &claimed).await;
        assert_eq!(entries(&db.store, claimed.id).await, ["a 1 1"], "an ended job keeps its journal");
        db.clock.advance_ms((RETENTION_DEFAULT_S + 60) * 1_000);
        db.store.prune(RETENTION_DEFAULT_S).await.expect("prunes");
        for table in ["journals", "journal_entries"] {
            assert_eq!(number(&db.store, &format!("select count(*) from {table}")).await, 0, "{table}");
        }
    })
    .await;
}
