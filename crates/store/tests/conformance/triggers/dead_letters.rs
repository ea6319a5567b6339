//! Dead letters: creation, replay, resolution and pruning.

use domain::limits::DEAD_LETTER_RETENTION_DEFAULT_S;
use domain::queue::job_origin::Cause;
use domain::triggers::trigger::Source;
use domain::{DeadLetterId, EventId, JobError, JobId, Origin, Resolution, RetryPolicy, TenantId, TriggerId};
use store::Store;
use store::queue::enqueue::{Extras, NewJob};
use store::queue::retry::Retried;
use store::queue::settle::End;
use store::triggers::NewTrigger;
use store::triggers::dead_letters::DeadLetter;
use store::triggers::dead_letters::list::{DeadLetterCount, DeadLetterFilter};
use store::triggers::dead_letters::replay::{DeadLetterReplay, ReplayedWork};
use store::triggers::dead_letters::resolve::Resolve;
use testkit::{Database, job, label, on_both};
use uuid::Uuid;

use crate::support::*;
use crate::triggers::declarations::{claim_outbox, create, new};

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
    store.dead_letter(T, id).await.expect("reads").expect("the dead letter exists")
}

async fn assert_verified(store: &Store) {
    assert_eq!(store.verify().await.expect("verifies").findings, []);
}

/// Creates a job that fails at its only attempt. Returns it and its dead letter.
async fn dead(db: &Database) -> (JobId, DeadLetter) {
    let id = push(&db.store, with(Extras::default())).await;
    fail(&db.store, id, error("at once", true)).await;
    let letter = db.store.dead_letter_of(T, id).await.expect("reads").expect("a dead letter exists");
    (id, self::letter(&db.store, letter).await)
}

/// Requirement T6.
#[tokio::test]
async fn a_job_out_of_attempts_leaves_one_dead_letter_with_every_attempt() {
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
        let messages: Vec<&str> = letter.attempts.iter().map(|attempt| attempt.error.message.as_str()).collect();
        assert_eq!(messages, ["for the 1. time", "for the 2. time", "for the 3. time"]);
        assert!(letter.attempts.windows(2).all(|pair| pair[0].at < pair[1].at));
        assert_eq!(letter.last_error, error("for the 3. time", true));
        assert_eq!(letter.resolved, None);
        assert_verified(&db.store).await;
    })
    .await;
}

/// Requirement T6.
#[tokio::test]
async fn a_non_retryable_failure_leaves_a_dead_letter_immediately() {
    on_both(async |db| {
        let id = push(&db.store, NewJob { max_attempts: 5, ..with(Extras::default()) }).await;
        fail(&db.store, id, error("no use", false)).await;
        assert_eq!(letters(&db.store).await.len(), 1);
        assert_verified(&db.store).await;
    })
    .await;
}

/// Requirement T6.
#[tokio::test]
async fn an_expired_last_attempt_leaves_a_dead_letter() {
    on_both(async |db| {
        let id = push(&db.store, with(Extras::default())).await;
        let worker = register(&db.store, &["q"]).await;
        claim_one(&db.store, worker).await;
        db.pass_ms(31_000).await;
        db.store.sweep().await.expect("sweeps");
        let found = letters(&db.store).await;
        assert_eq!((found.len(), found[0].job, found[0].last_error.code.as_str()), (1, Some(id), "expired"));
        assert_verified(&db.store).await;
    })
    .await;
}

/// Requirement T6.
#[tokio::test]
async fn jobs_of_processes_and_calls_leave_no_dead_letter() {
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

/// Requirement T6.
#[tokio::test]
async fn the_dead_letter_of_a_triggered_job_names_its_trigger_and_event() {
    on_both(async |db| {
        let (trigger, event) = (TriggerId::new(Uuid::from_u128(1)), EventId::new(Uuid::from_u128(2)));
        let cause = Cause { event, source: "kv".into(), op: "set".into() };
        let origin = Origin::Trigger { trigger, cause };
        let id = push(&db.store, with(Extras { triggered_by: origin.stored(), depth: 3, ..Extras::default() })).await;
        fail(&db.store, id, error("x", true)).await;
        let found = letters(&db.store).await.remove(0);
        assert_eq!((found.trigger, found.event, found.depth), (Some(trigger), event, 3));
        assert_eq!((found.source.as_str(), found.op.as_str()), ("kv", "set"));
        // Replayed by hand, the job fails again. The new dead letter has the event but no trigger.
        let replayed = db.store.replay_dead_letter(T, found.id, None, "me").await.expect("replays");
        let DeadLetterReplay::Created(ReplayedWork::Job(again)) = replayed else { panic!("{replayed:?}") };
        fail(&db.store, again, error("still", true)).await;
        let second = letters(&db.store).await.remove(0);
        assert_eq!((second.job, second.trigger, second.event), (Some(again), None, event));
        assert_eq!((second.source.as_str(), second.depth), ("kv", 3));
        assert_verified(&db.store).await;
    })
    .await;
}

/// Requirement T7.
#[tokio::test]
async fn a_replay_is_a_new_job_linked_both_ways_and_idempotent() {
    on_both(async |db| {
        let extras = Extras { tags: vec![label("x")], timeout_s: Some(9), depth: 2, ..Extras::default() };
        let old = push(&db.store, NewJob { priority: 7, ..with(extras) }).await;
        fail(&db.store, old, error("x", true)).await;
        let id = letters(&db.store).await[0].id;
        let (one, other) = (db.another_node().await, db.another_node().await);
        let (a, b) =
            tokio::join!(one.replay_dead_letter(T, id, None, "ann"), other.replay_dead_letter(T, id, None, "bob"));
        let (a, b) = (a.expect("answers"), b.expect("answers"));
        let (
            DeadLetterReplay::Created(ReplayedWork::Job(again)),
            DeadLetterReplay::AlreadyReplayed(ReplayedWork::Job(same)),
        ) = (if matches!(a, DeadLetterReplay::Created(_)) { (a, b) } else { (b, a) })
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
        assert_verified(&db.store).await;
    })
    .await;
}

/// Requirement T7.
#[tokio::test]
async fn a_replay_may_replace_the_payload_even_after_its_job_is_pruned() {
    on_both(async |db| {
        let (old, dead) = dead(&db).await;
        run_sql(&db.store, "delete from ended").await.expect("the job is pruned");
        let replayed = db.store.replay_dead_letter(T, dead.id, Some("{\"a\":2}".into()), "me").await.expect("replays");
        let DeadLetterReplay::Created(ReplayedWork::Job(again)) = replayed else { panic!("{replayed:?}") };
        let again = get(&db.store, again).await;
        assert_eq!((again.payload.as_str(), again.parent), ("{\"a\":2}", Some(old)));
        assert_eq!(
            letter(&db.store, dead.id).await.payload,
            dead.payload,
            "the dead letter keeps the original payload"
        );
    })
    .await;
}

/// Requirement T7.
#[tokio::test]
async fn a_resolution_is_set_once_with_its_author_and_time() {
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
        assert_eq!(letter(&db.store, dead.id).await.resolved, Some(first), "the first resolution stays");
        let other = resolve(Resolution::HandledByScript, "bob", None).await;
        assert_eq!(other, Resolve::AlreadyResolved(Resolution::Ignored));
        let replayed = db.store.replay_dead_letter(T, dead.id, None, "bob").await.expect("answers");
        assert_eq!(replayed, DeadLetterReplay::AlreadyResolved(Resolution::Ignored));
        let other_tenant = TenantId::SYSTEM;
        let foreign = db.store.resolve_dead_letter(other_tenant, dead.id, Resolution::Ignored, "x".into(), None).await;
        assert_eq!(foreign.expect("answers"), Resolve::NotFound, "X6");
        assert!(db.store.dead_letter(other_tenant, dead.id).await.expect("reads").is_none());
        assert_verified(&db.store).await;
    })
    .await;
}

/// Requirement T7.
#[tokio::test]
async fn a_retry_of_a_job_is_a_replay_of_its_dead_letter() {
    on_both(async |db| {
        let (old, dead) = dead(&db).await;
        let Retried::Created(created) = db.store.retry_job(T, old, None, "me").await.expect("retries") else {
            panic!("the job has ended")
        };
        let replayed = db.store.replay_dead_letter(T, dead.id, None, "me").await.expect("answers");
        assert_eq!(replayed, DeadLetterReplay::AlreadyReplayed(ReplayedWork::Job(created.id)));
        let with = async |payload: &str| {
            db.store.replay_dead_letter(T, dead.id, Some(payload.into()), "me").await.expect("answers")
        };
        assert_eq!(
            with(r#"{"a":[2],"b":1}"#).await,
            DeadLetterReplay::AlreadyReplayed(ReplayedWork::Job(created.id)),
            "the same payload is idempotent"
        );
        assert_eq!(with(r#"{"a":[3],"b":1}"#).await, DeadLetterReplay::OtherPayload(ReplayedWork::Job(created.id)));
        assert_verified(&db.store).await;
    })
    .await;
}

/// A dead-letter trigger.
async fn handler(store: &Store, name: &str, handles: bool) -> TriggerId {
    create(store, NewTrigger { handles, ..new(name, Source::DeadLetter, r#"{"source": "job"}"#) }).await
}

/// Runs a job as the handler of this letter.
async fn handle(db: &Database, letter: DeadLetterId, trigger: TriggerId, well: bool) {
    let cause = Cause { event: EventId::new(letter.uuid()), source: "dead_letter".into(), op: "created".into() };
    let origin = Origin::Trigger { trigger, cause };
    let job = push(&db.store, with(Extras { triggered_by: origin.stored(), ..Extras::default() })).await;
    if well {
        let worker = register(&db.store, &["q"]).await;
        finish(&db.store, worker, &claim_one(&db.store, worker).await).await;
    } else {
        fail(&db.store, job, error("the handler", true)).await;
    }
    assert_eq!(db.store.dead_letter_of(T, job).await.expect("reads"), None, "no second dead letter");
}

/// Requirement T8.
#[tokio::test]
async fn a_handler_that_declares_it_resolves_its_dead_letter_and_leaves_no_second() {
    on_both(async |db| {
        for well in [true, false] {
            let trigger = handler(&db.store, &format!("handles {well}"), true).await;
            let (_, dead) = dead(&db).await;
            handle(&db, dead.id, trigger, well).await;
            let resolved = letter(&db.store, dead.id).await.resolved.expect("resolved");
            let expected = if well { Resolution::HandledByScript } else { Resolution::HandlerFailed };
            assert_eq!((resolved.resolution, resolved.by), (expected, format!("trigger:{trigger}")));
            let replayed = db.store.replay_dead_letter(T, dead.id, None, "me").await.expect("answers");
            assert!(matches!(replayed, DeadLetterReplay::Created(_)), "a replay is still possible: {replayed:?}");
            db.store.delete_trigger(T, trigger, "ann").await.expect("deletes");
            let worker = register(&db.store, &["q"]).await;
            finish(&db.store, worker, &claim_one(&db.store, worker).await).await;
            assert_verified(&db.store).await;
        }
    })
    .await;
}

/// Requirement T8.
#[tokio::test]
async fn a_handler_that_only_notifies_leaves_the_letter_open_and_every_outcome_is_kept() {
    on_both(async |db| {
        let notifies = handler(&db.store, "notifies", false).await;
        let broken = handler(&db.store, "broken", true).await;
        let repairs = handler(&db.store, "repairs", true).await;
        let (_, dead) = dead(&db).await;
        let resolution = async || letter(&db.store, dead.id).await.resolved.map(|resolved| resolved.resolution);
        handle(&db, dead.id, notifies, true).await;
        assert_eq!(resolution().await, None);
        handle(&db, dead.id, broken, false).await;
        assert_eq!(resolution().await, Some(Resolution::HandlerFailed));
        handle(&db, dead.id, repairs, true).await;
        assert_eq!(resolution().await, Some(Resolution::HandledByScript), "one success counts");
        let handlers = letter(&db.store, dead.id).await.handlers;
        let outcome = |of: TriggerId| {
            let handler = handlers.iter().find(|handler| handler.trigger == of).expect("it ran");
            (handler.outcome.as_str(), handler.error.as_ref().map(|error| error.message.as_str()))
        };
        let outcomes = [notifies, broken, repairs].map(outcome);
        assert_eq!(outcomes, [("succeeded", None), ("failed", Some("the handler")), ("succeeded", None)]);
        db.pass_ms(1_000).await;
        assert_eq!(db.store.prune_dead_letters(0).await.expect("prunes"), 1);
        assert_eq!(number(&db.store, "select count(*) from letter_handlers").await, 0, "its handlers go with it");
    })
    .await;
}

/// Requirement T8.
#[tokio::test]
async fn the_event_of_a_dead_letter_has_every_attempt() {
    on_both(async |db| {
        handler(&db.store, "handler", true).await;
        let retry = RetryPolicy::new(Some(1), None, None, None).expect("a policy");
        let extras = Extras { retry: Some(retry), ..Extras::default() };
        let id = push(&db.store, NewJob { max_attempts: 2, ..with(extras) }).await;
        fail(&db.store, id, error("first", true)).await;
        db.pass_ms(2_000).await;
        db.store.promote_due().await.expect("promotes");
        fail(&db.store, id, error("second", true)).await;
        let event = claim_outbox(&db.store).await.rows.remove(0);
        let data: serde_json::Value = serde_json::from_str(&event.data).expect("JSON");
        let letter = db.store.dead_letter_of(T, id).await.expect("reads").expect("a dead letter exists");
        assert_eq!((&data["id"], &data["attempt_count"]), (&letter.uuid().to_string().into(), &2.into()));
        let messages = [&data["attempts"][0]["error"]["message"], &data["attempts"][1]["error"]["message"]];
        assert_eq!(messages, ["first", "second"]);
        assert!(data["attempts"][0]["at"].as_str().expect("a time").ends_with('Z'), "{data}");
    })
    .await;
}

/// Requirement T9.
#[tokio::test]
async fn only_resolved_dead_letters_are_pruned_by_age() {
    on_both(async |db| {
        let (_, ignored) = dead(&db).await;
        let (_, open) = dead(&db).await;
        let by = || "me".to_owned();
        db.store.resolve_dead_letter(T, ignored.id, Resolution::Ignored, by(), None).await.expect("resolves");
        let prune = async || db.store.prune_dead_letters(DEAD_LETTER_RETENTION_DEFAULT_S).await.expect("prunes");
        db.clock.advance_ms(DEAD_LETTER_RETENTION_DEFAULT_S * 1_000 - 60_000);
        assert_eq!(prune().await, 0);
        db.clock.advance_ms(120_000);
        assert_eq!(prune().await, 1);
        db.clock.advance_ms(10 * DEAD_LETTER_RETENTION_DEFAULT_S * 1_000);
        assert_eq!(prune().await, 0);
        assert_eq!(letters(&db.store).await.iter().map(|letter| letter.id).collect::<Vec<_>>(), [open.id]);
        assert_eq!(db.store.recent_prunings(1).await.expect("reads")[0].kind, "dead_letters");
    })
    .await;
}

#[tokio::test]
async fn dead_letters_are_filtered_and_counted() {
    on_both(async |db| {
        let (first, one) = dead(&db).await;
        db.pass_ms(10_000).await;
        let (_, other) = dead(&db).await;
        db.store.resolve_dead_letter(T, other.id, Resolution::Ignored, "me".into(), None).await.expect("resolves");
        let found = async |filter: DeadLetterFilter| -> Vec<DeadLetterId> {
            let count = db.store.count_dead_letters(T, filter.clone()).await.expect("counts");
            let letters = db.store.list_dead_letters(T, filter, None, 10).await.expect("lists");
            assert_eq!(count, DeadLetterCount { count: letters.len(), capped: false });
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
        assert_eq!(again, [one.id], "only unresolved ones");
    })
    .await;
}

#[tokio::test]
async fn unresolved_dead_letters_are_grouped_by_what_failed() {
    on_both(async |db| {
        for (code, message) in [("boom", "first"), ("boom", "second"), ("other", "third")] {
            let id = push(&db.store, with(Extras::default())).await;
            fail(&db.store, id, JobError { code: code.into(), message: message.into(), retryable: false }).await;
        }
        let found = db.store.group_dead_letters(T).await.expect("groups");
        let groups: Vec<(&str, usize, &str)> = found
            .groups
            .iter()
            .map(|group| (group.error_code.as_str(), group.count, group.last_error.message.as_str()))
            .collect();
        assert_eq!((groups, found.is_partial), (vec![("boom", 2, "second"), ("other", 1, "third")], false));
        assert_eq!((found.groups[0].queue.as_deref(), found.groups[0].source.as_str()), (Some("q"), "job"));
        // The filter of a group selects its letters, and a resolved letter leaves the group.
        let filter = DeadLetterFilter {
            resolved: Some(false),
            queue: Some("q".into()),
            error_code: Some("boom".into()),
            ..DeadLetterFilter::default()
        };
        let letters = db.store.list_dead_letters(T, filter, None, 9).await.expect("lists");
        assert_eq!((letters.len(), letters[0].id), (2, found.groups[0].newest));
        let resolved = db.store.resolve_dead_letter(T, letters[0].id, Resolution::Ignored, "a".into(), None).await;
        assert_eq!(resolved.expect("resolves"), Resolve::Done);
        let found = db.store.group_dead_letters(T).await.expect("groups");
        assert_eq!(found.groups.iter().find(|group| group.error_code == "boom").map(|group| group.count), Some(1));
        assert!(db.store.group_dead_letters(TenantId(99)).await.expect("groups").groups.is_empty());
    })
    .await;
}
