//! T6–T9: what failed for good waits for a person, with all it takes to decide.

use domain::limits::DEAD_LETTER_RETENTION_S_DEFAULT;
use domain::origin::Cause;
use domain::{DeadLetterId, EventId, JobError, JobId, Origin, Resolution, RetryPolicy, TenantId, TriggerId};
use store::Store;
use store::dead_letters::DeadLetter;
use store::dead_letters::list::{Count, DeadLetterFilter};
use store::dead_letters::replay::{Replayed, Work};
use store::dead_letters::resolve::Resolve;
use store::jobs::enqueue::{Extras, NewJob};
use store::jobs::retry::Retried;
use store::jobs::settle::End;
use testkit::{Database, job, label, on_both};
use uuid::Uuid;

use crate::support::*;

fn with(extras: Extras) -> NewJob {
    NewJob { max_attempts: 1, payload: r#"{"b":1, "a":[ 2 ]}"#.into(), extras: Some(Box::new(extras)), ..job("q") }
}

fn error(message: &str, retryable: bool) -> JobError {
    JobError { code: "boom".into(), message: message.into(), retryable }
}

/// Claims the job and fails it.
async fn fail(store: &Store, job: JobId, error: JobError) {
    let worker = register(store, &["q"]).await;
    let claimed = claim_one(store, worker).await;
    assert_eq!(claimed.id, job);
    settle(store, worker, job, claimed.epoch, End::Fail(error)).await;
}

async fn letters(store: &Store) -> Vec<DeadLetter> {
    store.list_dead_letters(T, DeadLetterFilter::default(), None, 100).await.expect("lists")
}

async fn letter(store: &Store, id: DeadLetterId) -> DeadLetter {
    store.dead_letter(T, id).await.expect("reads").expect("the letter is there")
}

async fn holds(store: &Store) {
    assert_eq!(store.verify().await.expect("verifies").findings, []);
}

/// A job that failed at its first and only attempt, and its letter.
async fn dead(db: &Database) -> (JobId, DeadLetter) {
    let id = push(&db.store, with(Extras::default())).await;
    fail(&db.store, id, error("at once", true)).await;
    let letter = db.store.dead_letter_of(T, id).await.expect("reads").expect("it left a letter");
    (id, self::letter(&db.store, letter).await)
}

#[tokio::test]
async fn t6_out_of_retries_leaves_one_letter_with_every_attempt() {
    on_both(async |db| {
        let retry = RetryPolicy::new(Some(1), None, None, None).expect("a policy");
        let extras = Extras { retry: Some(retry), ..Extras::default() };
        let id = push(&db.store, NewJob { max_attempts: 3, ..with(extras) }).await;
        let worker = register(&db.store, &["q"]).await;
        for attempt in 1..=3 {
            assert!(letters(&db.store).await.is_empty(), "attempt {attempt} is still to come");
            let claimed = claim_one(&db.store, worker).await;
            let end = End::Fail(error(&format!("for the {attempt}. time"), true));
            settle(&db.store, worker, id, claimed.epoch, end).await;
            db.pass_ms(1_000).await;
            db.store.promote_due().await.expect("promotes");
        }
        let found = letters(&db.store).await;
        let [letter] = found.as_slice() else { panic!("one letter: {found:?}") };
        assert_eq!(letter.payload, r#"{"b":1, "a":[ 2 ]}"#, "verbatim");
        assert_eq!((letter.job, letter.event), (Some(id), EventId::new(id.uuid())));
        assert_eq!((letter.source.as_str(), letter.op.as_str(), letter.trigger), ("job", "failed", None));
        let told: Vec<&str> = letter.attempts.iter().map(|attempt| attempt.error.message.as_str()).collect();
        assert_eq!(told, ["for the 1. time", "for the 2. time", "for the 3. time"]);
        assert!(letter.attempts.windows(2).all(|pair| pair[0].at < pair[1].at));
        assert_eq!(letter.last_error, error("for the 3. time", true));
        assert_eq!(letter.resolved, None);
        holds(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn t6_a_failure_that_is_not_retryable_leaves_a_letter_at_once() {
    on_both(async |db| {
        let id = push(&db.store, NewJob { max_attempts: 5, ..with(Extras::default()) }).await;
        fail(&db.store, id, error("no use", false)).await;
        assert_eq!(letters(&db.store).await.len(), 1);
        holds(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn t6_a_worker_that_dies_with_the_last_attempt_leaves_a_letter() {
    on_both(async |db| {
        let id = push(&db.store, with(Extras::default())).await;
        let worker = register(&db.store, &["q"]).await;
        claim_one(&db.store, worker).await;
        db.pass_ms(31_000).await;
        db.store.sweep().await.expect("sweeps");
        let found = letters(&db.store).await;
        assert_eq!((found.len(), found[0].job, found[0].last_error.code.as_str()), (1, Some(id), "expired"));
        holds(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn t6_jobs_of_processes_and_calls_leave_no_letter() {
    on_both(async |db| {
        for origin in [Origin::Process("scan".into()), Origin::Call] {
            let id = push(&db.store, with(Extras { triggered_by: origin.stored(), ..Extras::default() })).await;
            fail(&db.store, id, error("x", false)).await;
            assert_eq!(state(&db.store, id).await, "failed");
        }
        let canceled = push(&db.store, with(Extras::default())).await;
        db.store.cancel(T, canceled, "me".into()).await.expect("cancels");
        assert!(letters(&db.store).await.is_empty());
    })
    .await;
}

#[tokio::test]
async fn t6_the_letter_of_a_triggered_job_names_trigger_and_event() {
    on_both(async |db| {
        let (trigger, event) = (TriggerId::new(Uuid::from_u128(1)), EventId::new(Uuid::from_u128(2)));
        let cause = Cause { event, source: "kv".into(), op: "set".into() };
        let origin = Origin::Trigger { trigger, cause };
        let id = push(&db.store, with(Extras { triggered_by: origin.stored(), depth: 3, ..Extras::default() })).await;
        fail(&db.store, id, error("x", true)).await;
        let found = letters(&db.store).await.remove(0);
        assert_eq!((found.trigger, found.event, found.depth), (Some(trigger), event, 3));
        assert_eq!((found.source.as_str(), found.op.as_str()), ("kv", "set"));
        // Played again by hand, it fails again: the letter knows its event, and no trigger.
        let replayed = db.store.replay_dead_letter(T, found.id, None, "me").await.expect("replays");
        let Replayed::Made(Work::Job(again)) = replayed else { panic!("{replayed:?}") };
        fail(&db.store, again, error("still", true)).await;
        let second = letters(&db.store).await.remove(0);
        assert_eq!((second.job, second.trigger, second.event), (Some(again), None, event));
        assert_eq!((second.source.as_str(), second.depth), ("kv", 3));
        holds(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn t7_a_replay_is_new_work_linked_both_ways_and_twice_is_once() {
    on_both(async |db| {
        let extras = Extras { tags: vec![label("x")], timeout_s: Some(9), depth: 2, ..Extras::default() };
        let old = push(&db.store, NewJob { priority: 7, ..with(extras) }).await;
        fail(&db.store, old, error("x", true)).await;
        let id = letters(&db.store).await[0].id;
        let (one, other) = (db.another_node().await, db.another_node().await);
        let (a, b) =
            tokio::join!(one.replay_dead_letter(T, id, None, "ann"), other.replay_dead_letter(T, id, None, "bob"));
        let (a, b) = (a.expect("answers"), b.expect("answers"));
        let (Replayed::Made(Work::Job(again)), Replayed::Before(Work::Job(same))) =
            (if matches!(a, Replayed::Made(_)) { (a, b) } else { (b, a) })
        else {
            panic!("once: {a:?} {b:?}")
        };
        assert_eq!(again, same);
        let resolved = letter(&db.store, id).await.resolved.expect("resolved");
        assert_eq!((resolved.resolution, resolved.replayed_as), (Resolution::Replayed, Some(again.uuid())));
        assert!(["ann", "bob"].contains(&resolved.by.as_str()));
        let job = get(&db.store, again).await;
        assert_eq!((job.parent, job.attempt, job.depth, job.lane.priority), (Some(old), 0, 2, 7));
        assert_eq!(
            (job.payload.as_str(), job.timeout_s, job.tags),
            (r#"{"b":1, "a":[ 2 ]}"#, Some(9), vec!["x".into()])
        );
        assert!(job.triggered_by.expect("an origin").starts_with(&format!("replay:{id}:")));
        assert_eq!(get(&db.store, old).await.retried_as, Some(again));
        assert_eq!(number(&db.store, "select count(*) from jobs").await, 1);
        holds(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn t7_a_replay_may_change_the_payload_and_outlives_its_job() {
    on_both(async |db| {
        let (old, dead) = dead(&db).await;
        run_sql(&db.store, "delete from ended").await.expect("the job is pruned");
        let replayed = db.store.replay_dead_letter(T, dead.id, Some("{\"a\":2}".into()), "me").await.expect("replays");
        let Replayed::Made(Work::Job(again)) = replayed else { panic!("{replayed:?}") };
        let again = get(&db.store, again).await;
        assert_eq!((again.payload.as_str(), again.parent), ("{\"a\":2}", Some(old)));
        assert_eq!(letter(&db.store, dead.id).await.payload, dead.payload, "the letter keeps what failed");
    })
    .await;
}

#[tokio::test]
async fn t7_a_resolution_is_set_once_with_who_and_when() {
    on_both(async |db| {
        let (_, dead) = dead(&db).await;
        let resolve = async |resolution, by: &str, note: Option<String>| {
            db.store.resolve_dead_letter(T, dead.id, resolution, by.into(), note).await.expect("answers")
        };
        assert_eq!(resolve(Resolution::Ignored, "ann", Some("known".into())).await, Resolve::Done);
        let first = letter(&db.store, dead.id).await.resolved.expect("resolved");
        assert_eq!((first.by.as_str(), first.note.as_deref()), ("ann", Some("known")));
        db.pass_ms(1_000).await;
        assert_eq!(resolve(Resolution::Ignored, "bob", None).await, Resolve::Done);
        assert_eq!(letter(&db.store, dead.id).await.resolved, Some(first), "the first word stays");
        let other = resolve(Resolution::HandledByScript, "bob", None).await;
        assert_eq!(other, Resolve::AlreadyResolved(Resolution::Ignored));
        let replayed = db.store.replay_dead_letter(T, dead.id, None, "bob").await.expect("answers");
        assert_eq!(replayed, Replayed::AlreadyResolved(Resolution::Ignored));
        let nobody = TenantId::SYSTEM;
        let foreign = db.store.resolve_dead_letter(nobody, dead.id, Resolution::Ignored, "x".into(), None).await;
        assert_eq!(foreign.expect("answers"), Resolve::NotFound, "X6");
        assert!(db.store.dead_letter(nobody, dead.id).await.expect("reads").is_none());
        holds(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn t7_a_retry_of_the_job_is_a_replay_of_its_letter() {
    on_both(async |db| {
        let (old, dead) = dead(&db).await;
        let Retried::Made(made) = db.store.retry_job(T, old, None, "me").await.expect("retries") else {
            panic!("it has ended")
        };
        let replayed = db.store.replay_dead_letter(T, dead.id, None, "me").await.expect("answers");
        assert_eq!(replayed, Replayed::Before(Work::Job(made.id)));
        let with = async |payload: &str| {
            db.store.replay_dead_letter(T, dead.id, Some(payload.into()), "me").await.expect("answers")
        };
        assert_eq!(with(r#"{"a":[2],"b":1}"#).await, Replayed::Before(Work::Job(made.id)), "it is the same payload");
        assert_eq!(with(r#"{"a":[3],"b":1}"#).await, Replayed::Otherwise(Work::Job(made.id)));
        holds(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn t8_the_end_of_a_handler_resolves_its_letter_and_leaves_no_second() {
    on_both(async |db| {
        for well in [true, false] {
            let (_, dead) = dead(&db).await;
            let trigger = TriggerId::new(Uuid::from_u128(1));
            let event = EventId::new(dead.id.uuid());
            let cause = Cause { event, source: "dead_letter".into(), op: "created".into() };
            let origin = Origin::Trigger { trigger, cause };
            let handler = push(&db.store, with(Extras { triggered_by: origin.stored(), ..Extras::default() })).await;
            if well {
                let worker = register(&db.store, &["q"]).await;
                finish(&db.store, worker, &claim_one(&db.store, worker).await).await;
            } else {
                fail(&db.store, handler, error("the handler", true)).await;
            }
            let resolved = letter(&db.store, dead.id).await.resolved.expect("resolved");
            let expected = if well { Resolution::HandledByScript } else { Resolution::HandlerFailed };
            assert_eq!((resolved.resolution, resolved.by), (expected, format!("trigger:{trigger}")));
            assert_eq!(db.store.dead_letter_of(T, handler).await.expect("reads"), None, "no second letter");
            if !well {
                let replayed = db.store.replay_dead_letter(T, dead.id, None, "me").await.expect("answers");
                assert!(matches!(replayed, Replayed::Made(_)), "a person may still play it again: {replayed:?}");
            }
            holds(&db.store).await;
        }
    })
    .await;
}

#[tokio::test]
async fn t9_only_resolved_letters_are_pruned_by_age() {
    on_both(async |db| {
        let (_, ignored) = dead(&db).await;
        let (_, open) = dead(&db).await;
        let by = || "me".to_owned();
        db.store.resolve_dead_letter(T, ignored.id, Resolution::Ignored, by(), None).await.expect("resolves");
        let prune = async || db.store.prune_dead_letters(DEAD_LETTER_RETENTION_S_DEFAULT).await.expect("prunes");
        db.clock.advance_ms(DEAD_LETTER_RETENTION_S_DEFAULT * 1_000 - 60_000);
        assert_eq!(prune().await, 0);
        db.clock.advance_ms(120_000);
        assert_eq!(prune().await, 1);
        db.clock.advance_ms(10 * DEAD_LETTER_RETENTION_S_DEFAULT * 1_000);
        assert_eq!(prune().await, 0);
        assert_eq!(letters(&db.store).await.iter().map(|letter| letter.id).collect::<Vec<_>>(), [open.id]);
        assert_eq!(db.store.recent_prunings(1).await.expect("reads")[0].kind, "dead_letters");
    })
    .await;
}

#[tokio::test]
async fn letters_are_found_by_what_they_are_about() {
    on_both(async |db| {
        let (first, one) = dead(&db).await;
        db.pass_ms(10_000).await;
        let (_, other) = dead(&db).await;
        db.store.resolve_dead_letter(T, other.id, Resolution::Ignored, "me".into(), None).await.expect("resolves");
        let found = async |filter: DeadLetterFilter| -> Vec<DeadLetterId> {
            let count = db.store.count_dead_letters(T, filter.clone()).await.expect("counts");
            let letters = db.store.list_dead_letters(T, filter, None, 10).await.expect("lists");
            assert_eq!(count, Count { count: letters.len(), capped: false });
            letters.into_iter().map(|letter| letter.id).collect()
        };
        let all = DeadLetterFilter::default;
        assert_eq!(found(all()).await, [other.id, one.id], "newest first");
        assert_eq!(found(DeadLetterFilter { resolved: Some(false), ..all() }).await, [one.id]);
        assert_eq!(found(DeadLetterFilter { resolved: Some(true), ..all() }).await, [other.id]);
        assert_eq!(found(DeadLetterFilter { job: Some(first), ..all() }).await, [one.id]);
        assert_eq!(found(DeadLetterFilter { kind: Some("k".into()), queue: Some("q".into()), ..all() }).await.len(), 2);
        assert_eq!(found(DeadLetterFilter { error_code: Some("boom".into()), ..all() }).await.len(), 2);
        assert_eq!(found(DeadLetterFilter { source: Some("kv".into()), ..all() }).await, []);
        let middle = one.created_at.plus_s(5);
        assert_eq!(found(DeadLetterFilter { since: Some(middle), ..all() }).await, [other.id]);
        assert_eq!(found(DeadLetterFilter { until: Some(middle), ..all() }).await, [one.id]);
        let page = db.store.list_dead_letters(T, all(), Some(other.id), 10).await.expect("lists");
        assert_eq!(page.iter().map(|letter| letter.id).collect::<Vec<_>>(), [one.id]);
        let again = db.store.dead_letters_to_replay(T, all()).await.expect("finds");
        assert_eq!(again, [one.id], "only what is unresolved");
    })
    .await;
}
