//! Suspended jobs: sleeps, events, approvals and children wake them once, in any order of the suspend and its cause.

use std::collections::BTreeMap;

use domain::limits::JOB_EVENTS;
use domain::{Epoch, JobId, JobState, WorkerId};
use serde_json::json;
use store::Store;
use store::queue::claim::ClaimedJob;
use store::queue::enqueue::NewJob;
use store::queue::settle::{End, Outcome, SettleStatus, Settled};
use store::workflows::journal::Wake;
use store::workflows::journal::approvals::{Answered, ApprovalAnswer};
use store::workflows::journal::events::{NewJobEvent, Sent};
use store::workflows::journal::write::{NewJournalOperation, OperationInput, SleepEnd};
use testkit::{Database, job, label, on_both};

use super::journal::{done, entries, record};
use crate::support::*;
use crate::triggers::declarations::assert_verified;

fn operation(key: &str, input: OperationInput) -> NewJournalOperation {
    NewJournalOperation { key: label(key), hash: None, input }
}

fn sleep(key: &str, delay_ms: i64) -> NewJournalOperation {
    operation(key, OperationInput::Sleep { until: SleepEnd::After { delay_ms } })
}

fn event(key: &str, name: &str) -> NewJournalOperation {
    let (matches, timeout_ms, since_now) = (BTreeMap::new(), None, false);
    operation(key, OperationInput::Event { name: label(name), matches, timeout_ms, since_now })
}

fn approval(key: &str, timeout_ms: Option<i64>) -> NewJournalOperation {
    let (title, detail, right) = ("Pay?".into(), None, "operate".into());
    operation(key, OperationInput::Approval { title, detail, right, timeout_ms })
}

fn children(key: &str, count: usize) -> NewJournalOperation {
    let jobs: Vec<NewJob> = (0..count).map(|_| job("children")).collect();
    operation(key, OperationInput::Child { jobs, lanes: Vec::new() })
}

fn wake(keys: &[&str], count: usize) -> Wake {
    Wake { keys: keys.iter().map(|key| label(key)).collect(), count: count as i64 }
}

async fn suspend(store: &Store, worker: WorkerId, claimed: &ClaimedJob, keys: &[&str], count: usize) -> SettleStatus {
    settle(store, worker, claimed.id, claimed.epoch, End::Suspend(wake(keys, count))).await
}

fn new_event(job: JobId, name: &str, data: &str) -> NewJobEvent {
    let principal = "sender".into();
    NewJobEvent { job, name: label(name), data: data.into(), idempotency_key: None, principal }
}

async fn send(store: &Store, job: JobId, name: &str, data: &str) -> Sent {
    store.send_event(T, new_event(job, name, data)).await.expect("sends")
}

async fn resolve(store: &Store) -> usize {
    store.resolve_waits().await.expect("resolves").entries
}

async fn answer(store: &Store, job: JobId, key: &str, approve: bool) -> Answered {
    let (note, principal) = (Some("fine".into()), "boss".into());
    store.answer_approval(T, ApprovalAnswer { job, key: label(key), approve, note, principal }).await.expect("answers")
}

async fn worker_with_job(store: &Store) -> (WorkerId, ClaimedJob) {
    push(store, job("q")).await;
    let worker = register_with_long_lease(store).await;
    let claimed = claim_one(store, worker).await;
    (worker, claimed)
}

/// Another node on PostgreSQL, this node on SQLite.
async fn other_node(db: &Database) -> Store {
    if db.store.is_postgres() { db.another_node().await } else { db.store.clone() }
}

async fn assert_consistent(store: &Store) {
    assert_counters_match(store).await;
    assert_verified(store).await;
}

/// Guarantee 4 of workflows.
#[tokio::test]
async fn a_sleeping_job_wakes_once_when_its_time_comes() {
    on_both(async |db| {
        let (worker, claimed) = worker_with_job(&db.store).await;
        record(&db.store, worker, &claimed, vec![sleep("nap", 60_000)]).await;
        assert_eq!(suspend(&db.store, worker, &claimed, &["nap"], 1).await, SettleStatus::Applied);
        let waiting = get(&db.store, claimed.id).await;
        assert_eq!((waiting.state, waiting.attempt, waiting.worker), (JobState::Waiting, 0, None));
        assert!(claim(&db.store, worker, 1).await.is_empty());
        assert_eq!(resolve(&db.store).await, 0, "the time has not come");
        assert_consistent(&db.store).await;
        db.pass_ms(60_001).await;
        assert_eq!((resolve(&db.store).await, resolve(&db.store).await), (1, 0));
        let again = claim_one(&db.store, worker).await;
        assert_eq!((again.id, again.attempt), (claimed.id, 1), "a suspend burns no attempt");
        assert_eq!(entries(&db.store, claimed.id).await, ["nap null 1"]);
        assert_eq!(events(&db.store, claimed.id).await, ["enqueued", "started", "suspended", "started"]);
        finish(&db.store, worker, &again).await;
        assert_consistent(&db.store).await;
    })
    .await;
}

/// Guarantee 4 of workflows.
#[tokio::test]
async fn an_event_before_during_or_after_the_suspend_wakes_the_job_once() {
    on_both(async |db| {
        for place in 0..3 {
            let (worker, claimed) = worker_with_job(&db.store).await;
            let id = claimed.id;
            if place == 0 {
                assert_eq!(send(&db.store, id, "paid", "7").await, Sent::Accepted);
            }
            let answers = record(&db.store, worker, &claimed, vec![event("wait", "paid")]).await;
            assert_eq!(answers[0].entry.seq.is_some(), place == 0);
            if place == 1 {
                assert_eq!(send(&db.store, id, "paid", "7").await, Sent::Accepted);
            }
            suspend(&db.store, worker, &claimed, &["wait"], 1).await;
            assert_eq!(state(&db.store, id).await, if place == 2 { "waiting" } else { "queued" }, "{place}");
            if place == 2 {
                assert_eq!(send(&db.store, id, "other", "1").await, Sent::Accepted);
                assert_eq!(state(&db.store, id).await, "waiting");
                assert_eq!(send(&db.store, id, "paid", "7").await, Sent::Accepted);
            }
            assert_eq!(state(&db.store, id).await, "queued");
            assert_eq!(send(&db.store, id, "paid", "8").await, Sent::Accepted, "an event for later");
            assert_eq!(resolve(&db.store).await, 0);
            assert_eq!(entries(&db.store, id).await, ["wait 7 1"]);
            let again = claim_one(&db.store, worker).await;
            let answers = record(&db.store, worker, &again, vec![event("wait#2", "paid")]).await;
            assert_eq!(answers[0].entry.seq, Some(2), "each event is received once");
            assert_eq!(entries(&db.store, id).await, ["wait 7 1", "wait#2 8 2"]);
            finish(&db.store, worker, &again).await;
            assert_consistent(&db.store).await;
        }
    })
    .await;
}

/// Guarantee 4 of workflows.
#[tokio::test]
async fn an_event_that_races_the_suspend_wakes_the_job_once_on_two_nodes() {
    on_both(async |db| {
        let other = other_node(&db).await;
        let worker = register_with_long_lease(&db.store).await;
        for round in 0..30 {
            push(&db.store, job("q")).await;
            let claimed = claim_one(&db.store, worker).await;
            record(&db.store, worker, &claimed, vec![event("wait", "paid"), event("again", "paid")]).await;
            let (status, sent, second) = tokio::join!(
                suspend(&db.store, worker, &claimed, &["wait"], 1),
                send(&other, claimed.id, "paid", "1"),
                send(&db.store, claimed.id, "paid", "2"),
            );
            assert_eq!((status, sent, second), (SettleStatus::Applied, Sent::Accepted, Sent::Accepted));
            assert_eq!(state(&db.store, claimed.id).await, "queued", "round {round}");
            let again = claim_one(&db.store, worker).await;
            assert_eq!(again.epoch, Epoch(2), "one wake-up, one claim");
            finish(&db.store, worker, &again).await;
        }
        assert_consistent(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn an_event_is_received_by_the_first_operation_that_it_matches() {
    on_both(async |db| {
        let (worker, claimed) = worker_with_job(&db.store).await;
        let id = claimed.id;
        send(&db.store, id, "paid", r#"{"order":1}"#).await;
        let awaits = |key: &str, order: i64, since_now: bool| {
            let matches = [("order".to_owned(), json!(order))].into();
            operation(key, OperationInput::Event { name: label("paid"), matches, timeout_ms: None, since_now })
        };
        record(&db.store, worker, &claimed, vec![awaits("two", 2, false), awaits("later", 1, true)]).await;
        record(&db.store, worker, &claimed, vec![awaits("one", 1, false)]).await;
        let order = |number: i64| format!(r#"{{"order":{number}}}"#);
        assert_eq!(
            entries(&db.store, id).await,
            ["two open after 0 0".into(), "later open after 0 0".into(), format!("one {} 1", order(1))]
        );
        for (number, expected) in [(3, 1), (1, 2), (2, 3)] {
            send(&db.store, id, "paid", &order(number)).await;
            let (head, _) = db.store.read_journal(T, id, 0, 10).await.expect("reads");
            assert_eq!(head.resolved, expected, "{number}");
        }
        assert_consistent(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn a_wait_that_is_resolved_when_it_is_recorded_is_answered_with_its_result() {
    on_both(async |db| {
        let (worker, claimed) = worker_with_job(&db.store).await;
        send(&db.store, claimed.id, "paid", r#"{"amount":7}"#).await;
        let ops = || vec![sleep("nap", 0), event("money", "paid"), event("more", "paid"), done("charge", "1")];
        let first = record(&db.store, worker, &claimed, ops()).await;
        let of = |answers: &[store::workflows::journal::write::RecordedEntry]| {
            let of = |answer: &store::workflows::journal::write::RecordedEntry| {
                (answer.existing, answer.entry.seq, answer.entry.result.clone())
            };
            answers.iter().map(of).collect::<Vec<_>>()
        };
        let (paid, null, charged) = (Some(r#"{"amount":7}"#.into()), Some("null".into()), Some("1".into()));
        let unknown = [(false, Some(1), null.clone()), (false, Some(2), paid.clone()), (false, None, None)];
        assert_eq!(of(&first)[..3], unknown);
        assert_eq!(of(&first)[3], (false, Some(3), None), "the caller knows the result of its step");
        let again = record(&db.store, worker, &claimed, ops()).await;
        let known = [(true, Some(1), null), (true, Some(2), paid), (false, None, None), (true, Some(3), charged)];
        assert_eq!(of(&again), known);
    })
    .await;
}

#[tokio::test]
async fn an_event_is_sent_once_per_idempotency_key_and_not_to_an_ended_job() {
    on_both(async |db| {
        let (worker, claimed) = worker_with_job(&db.store).await;
        let keyed =
            |data: &str| NewJobEvent { idempotency_key: Some("k".into()), ..new_event(claimed.id, "paid", data) };
        let send_keyed = async |data: &str| db.store.send_event(T, keyed(data)).await.expect("sends");
        assert_eq!(send_keyed("1").await, Sent::Accepted);
        assert_eq!((send_keyed("1").await, send_keyed("2").await), (Sent::Duplicate, Sent::KeyReused));
        assert_eq!(number(&db.store, "select count(*) from job_events").await, 1);
        let unknown = JobId::new(store::db::clock::new_uuid(db.clock.now()));
        assert_eq!(send(&db.store, unknown, "paid", "1").await, Sent::NotFound);
        for _ in 1..JOB_EVENTS {
            assert_eq!(send(&db.store, claimed.id, "paid", "1").await, Sent::Accepted);
        }
        assert_eq!(send(&db.store, claimed.id, "paid", "1").await, Sent::TooManyEvents);
        finish(&db.store, worker, &claimed).await;
        assert_eq!(send(&db.store, claimed.id, "paid", "1").await, Sent::AlreadyEnded(JobState::Succeeded));
    })
    .await;
}

#[tokio::test]
async fn an_approval_is_answered_once_or_times_out() {
    on_both(async |db| {
        let (worker, claimed) = worker_with_job(&db.store).await;
        let id = claimed.id;
        record(&db.store, worker, &claimed, vec![approval("pay", None), approval("late", Some(60_000))]).await;
        assert_eq!(suspend(&db.store, worker, &claimed, &["pay", "late"], 2).await, SettleStatus::Applied);
        assert_eq!(db.store.approval_right(T, id, label("pay")).await.expect("reads").as_deref(), Some("operate"));
        assert_eq!(answer(&db.store, id, "no such key", true).await, Answered::NotFound);
        let Answered::Recorded(first) = answer(&db.store, id, "pay", true).await else { panic!("not recorded") };
        assert!(first.starts_with(r#"{"approved":true,"by":"boss","at":"#), "{first}");
        assert_eq!(answer(&db.store, id, "pay", true).await, Answered::Recorded(first));
        assert_eq!(answer(&db.store, id, "pay", false).await, Answered::AlreadyAnswered);
        assert_eq!(state(&db.store, id).await, "waiting", "one of two is answered");
        db.pass_ms(60_001).await;
        assert_eq!(resolve(&db.store).await, 1);
        assert_eq!(answer(&db.store, id, "late", true).await, Answered::AlreadyAnswered);
        assert_eq!(state(&db.store, id).await, "queued");
        assert!(entries(&db.store, id).await[1].starts_with("late timeout 2"));
        assert_consistent(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn a_job_wakes_when_enough_of_its_entries_are_resolved() {
    on_both(async |db| {
        for (count, sent) in [(1, 1), (2, 2), (3, 3)] {
            let (worker, claimed) = worker_with_job(&db.store).await;
            let ops = ["a", "b", "c"].map(|name| event(name, name)).to_vec();
            record(&db.store, worker, &claimed, ops).await;
            suspend(&db.store, worker, &claimed, &["a", "b", "c"], count).await;
            for (number, name) in ["c", "a", "b"].into_iter().enumerate() {
                assert_eq!(state(&db.store, claimed.id).await == "queued", number >= sent, "{count} {number}");
                send(&db.store, claimed.id, name, "1").await;
            }
            let again = claim_one(&db.store, worker).await;
            assert_eq!(entries(&db.store, claimed.id).await, ["a 1 2", "b 1 3", "c 1 1"], "the order is stored");
            finish(&db.store, worker, &again).await;
        }
        assert_consistent(&db.store).await;
    })
    .await;
}

/// Guarantee 5 of workflows.
#[tokio::test]
async fn a_job_wakes_when_its_children_have_ended_with_their_outcomes_in_order() {
    on_both(async |db| {
        let (worker, claimed) = worker_with_job(&db.store).await;
        let id = claimed.id;
        record(&db.store, worker, &claimed, vec![children("parts", 3)]).await;
        let again = record(&db.store, worker, &claimed, vec![children("parts", 3)]).await;
        assert!(!again[0].existing, "it is open");
        assert_eq!(number(&db.store, "select count(*) from jobs").await, 4, "children are started once");
        let helper = db.store.register_worker(T, new_worker(&["children"])).await.expect("registers");
        let mut parts = claim(&db.store, helper, 3).await;
        parts.sort_by_key(|part| part.id);
        finish(&db.store, helper, &parts[1]).await;
        assert_eq!(suspend(&db.store, worker, &claimed, &["parts"], 1).await, SettleStatus::Applied);
        let fatal = domain::JobError { retryable: false, ..boom() };
        settle(&db.store, helper, parts[0].id, parts[0].epoch, End::Fail(fatal)).await;
        assert_eq!((resolve(&db.store).await, state(&db.store, id).await.as_str()), (0, "waiting"));
        db.store.cancel(T, parts[2].id, "operator".into()).await.expect("cancels");
        assert_eq!((resolve(&db.store).await, state(&db.store, id).await.as_str()), (1, "queued"));
        let claimed = claim_one(&db.store, worker).await;
        let page = claimed.journal.as_ref().expect("has a journal");
        let outcomes: serde_json::Value =
            serde_json::from_str(page.entries[0].result.as_deref().expect("resolved")).expect("JSON");
        let part = |number: usize| json!(parts[number].id.uuid());
        assert_eq!(
            outcomes,
            json!([
                {"job_id": part(0), "state": "failed", "error": {"code": "boom", "message": "it broke", "retryable": false}},
                {"job_id": part(1), "state": "succeeded", "result": 42},
                {"job_id": part(2), "state": "canceled"},
            ])
        );
        assert_eq!(get(&db.store, parts[0].id).await.parent, Some(id));
        finish(&db.store, worker, &claimed).await;
        assert_consistent(&db.store).await;
    })
    .await;
}

/// Guarantee 5 of workflows.
#[tokio::test]
async fn the_last_of_many_children_on_two_nodes_wakes_the_job_once() {
    on_both(async |db| {
        let other = other_node(&db).await;
        let (worker, claimed) = worker_with_job(&db.store).await;
        record(&db.store, worker, &claimed, vec![children("a", 20), children("b", 20)]).await;
        suspend(&db.store, worker, &claimed, &["a", "b"], 2).await;
        let helper = db.store.register_worker(T, new_worker(&["children"])).await.expect("registers");
        let parts = claim(&db.store, helper, 40).await;
        assert_eq!(parts.len(), 40);
        let ends = parts.iter().enumerate().map(|(number, part)| {
            let store = if number % 2 == 0 { &db.store } else { &other };
            async move {
                let end = if number % 3 == 0 { End::Finish(None) } else { End::Finish(Some("1".into())) };
                assert_eq!(settle(store, helper, part.id, part.epoch, end).await, SettleStatus::Applied);
                resolve(store).await
            }
        });
        let mut resolved: usize = futures_util::future::join_all(ends).await.into_iter().sum();
        resolved += resolve(&db.store).await;
        assert_eq!((resolved, state(&db.store, claimed.id).await.as_str()), (2, "queued"));
        let again = claim_one(&db.store, worker).await;
        assert_eq!(again.epoch, Epoch(2));
        finish(&db.store, worker, &again).await;
        assert_consistent(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn a_suspend_that_could_never_end_is_refused() {
    on_both(async |db| {
        let (worker, claimed) = worker_with_job(&db.store).await;
        record(&db.store, worker, &claimed, vec![event("a", "a")]).await;
        let outcome = Outcome { job: claimed.id, epoch: claimed.epoch, end: End::Suspend(wake(&["a", "b"], 1)) };
        let refused = db.store.settle(T, worker, vec![outcome]).await.expect("settles");
        assert_eq!(refused, Settled::NoSuchKey(0, label("b")));
        assert_eq!(state(&db.store, claimed.id).await, "working");
        let stale = settle(&db.store, worker, claimed.id, Epoch(0), End::Suspend(wake(&["b"], 1))).await;
        assert_eq!(stale, SettleStatus::ClaimLost);
        assert_consistent(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn a_canceled_job_waits_for_nothing() {
    on_both(async |db| {
        let (worker, claimed) = worker_with_job(&db.store).await;
        record(&db.store, worker, &claimed, vec![sleep("nap", 60_000), approval("pay", None)]).await;
        suspend(&db.store, worker, &claimed, &["nap", "pay"], 1).await;
        db.store.cancel(T, claimed.id, "operator".into()).await.expect("cancels");
        assert_eq!(answer(&db.store, claimed.id, "pay", true).await, Answered::AlreadyEnded(JobState::Canceled));
        db.pass_ms(60_001).await;
        assert_eq!(resolve(&db.store).await, 0);
        assert_eq!(db.store.resolve_waits().await.expect("resolves").next_in_ms, None, "no timer is left");
        assert_consistent(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn a_refused_request_starts_no_child_and_receives_no_event() {
    on_both(async |db| {
        let (worker, claimed) = worker_with_job(&db.store).await;
        record(&db.store, worker, &claimed, vec![done("a", "1")]).await;
        send(&db.store, claimed.id, "paid", "7").await;
        let conflict = operation("a", OperationInput::Sleep { until: SleepEnd::After { delay_ms: 1 } });
        let ops = vec![children("parts", 2), event("wait", "paid"), conflict];
        let refused = db.store.journal(T, worker, vec![super::journal::write(&claimed, ops)]).await.expect("writes");
        assert!(matches!(refused, store::workflows::journal::write::Journaled::Refused { op: 2, .. }), "{refused:?}");
        assert_eq!(number(&db.store, "select count(*) from jobs").await, 1);
        let answers = record(&db.store, worker, &claimed, vec![event("wait", "paid")]).await;
        assert_eq!(answers[0].entry.seq, Some(2), "the event is still there");
        assert_consistent(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn a_job_that_continues_as_another_ends_with_the_start_of_its_successor() {
    on_both(async |db| {
        let (worker, claimed) = worker_with_job(&db.store).await;
        record(&db.store, worker, &claimed, vec![done("a", "1")]).await;
        let continues = || End::ContinueAs { payload: r#"{"round":2}"#.into() };
        assert_eq!(settle(&db.store, worker, claimed.id, claimed.epoch, continues()).await, SettleStatus::Applied);
        assert_eq!(settle(&db.store, worker, claimed.id, claimed.epoch, continues()).await, SettleStatus::AlreadyEnded);
        let next = claim_one(&db.store, worker).await;
        assert_eq!((next.payload.as_str(), next.journal.is_none()), (r#"{"round":2}"#, true));
        let ended = get(&db.store, claimed.id).await;
        assert_eq!(ended.result, Some(format!(r#"{{"continued_as":"{}"}}"#, next.id)));
        assert_eq!((ended.state, get(&db.store, next.id).await.parent), (JobState::Succeeded, Some(claimed.id)));
        let stale = settle(&db.store, worker, next.id, Epoch(0), continues()).await;
        assert_eq!(stale, SettleStatus::ClaimLost);
        assert!(claim(&db.store, worker, 1).await.is_empty(), "there is one successor");
        assert_consistent(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn a_suspended_job_is_explained_down_the_chain_of_its_children() {
    on_both(async |db| {
        let why = async |id| db.store.why(T, id).await.expect("reads").expect("it exists");
        let (worker, claimed) = worker_with_job(&db.store).await;
        record(&db.store, worker, &claimed, vec![children("parts", 3)]).await;
        suspend(&db.store, worker, &claimed, &["parts"], 1).await;
        let helper = db.store.register_worker(T, new_worker(&["children"])).await.expect("registers");
        let mut parts = claim(&db.store, helper, 3).await;
        parts.sort_by_key(|part| part.id);
        finish(&db.store, helper, &parts[0]).await;
        assert_eq!(why(claimed.id).await.detail, "waits for child 2 of 3: a worker is running it");
        record(&db.store, helper, &parts[1], vec![sleep("nap", 60_000), approval("pay", None)]).await;
        suspend(&db.store, helper, &parts[1], &["nap", "pay"], 1).await;
        settle(&db.store, helper, parts[2].id, parts[2].epoch, End::Fail(boom())).await;
        let explained = why(claimed.id).await.detail;
        let start = "waits for child 3 of 3: waiting for a retry after `boom` until ";
        assert!(explained.starts_with(start), "a child that does not wait explains more: {explained}");
        db.store.cancel(T, parts[2].id, "operator".into()).await.expect("cancels");
        let own = why(parts[1].id).await;
        let start = "waits for the end of the sleep nap (1 of 2 open steps must resolve) until ";
        assert!(own.detail.starts_with(start) && own.until.is_some(), "{own:?}");
        let explained = why(claimed.id).await;
        assert_eq!(explained.detail, format!("waits for child 2 of 3, which {}", own.detail));
        assert_eq!(explained.until, None, "the end of the sleep does not end this wait");
        let (other, waits) = worker_with_job(&db.store).await;
        record(&db.store, other, &waits, vec![event("paid", "payment"), approval("pay", None)]).await;
        suspend(&db.store, other, &waits, &["paid", "pay"], 2).await;
        assert_eq!(why(waits.id).await.detail, "waits for the event payment (2 of 2 open steps must resolve)");
        send(&db.store, waits.id, "payment", "1").await;
        assert_eq!(why(waits.id).await.detail, "waits for the approval pay: Pay?");
    })
    .await;
}
