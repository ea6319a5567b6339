//! Subjects, facts and processes.

use domain::{Condition, FactValue, JobId, Label, ProcessSettings, RetryPolicy, Selector, Test, Time, WorkerId};
use store::Store;
use store::fleet::backoffs::lockout::{Lockout, Until};
use store::fleet::subjects::delete::SubjectDeleted;
use store::fleet::subjects::get::SubjectCard;
use store::fleet::subjects::put::{SubjectChange, SubjectPut};
use store::fleet::timeline::list::TimelineOf;
use store::queue::enqueue::{Extras, NewJob};
use store::queue::settle::{End, SettleStatus};
use testkit::{job, label, name, on_both};

use crate::support::*;

pub(crate) fn facts(facts: &[(&str, &str)]) -> Vec<(domain::Name, Option<Box<str>>)> {
    facts.iter().map(|(fact, value)| (name(fact), Some((*value).into()))).collect()
}

pub(crate) async fn set(store: &Store, subject: &str, values: &[(&str, &str)]) {
    let change = SubjectChange { id: label(subject), kind: None, facts: facts(values), actor: "me".into() };
    assert_eq!(store.put_subject(T, change).await.expect("puts"), SubjectPut::Done);
}

pub(crate) async fn card(store: &Store, subject: &str) -> SubjectCard {
    store.subject(T, label(subject)).await.expect("reads").expect("the subject exists")
}

fn is(fact: &str, value: &str) -> Condition {
    Condition::Fact { fact: name(fact), test: Test::Equals(FactValue(value.into())) }
}

fn older(fact: &str, seconds: i64) -> Condition {
    Condition::Fact { fact: name(fact), test: Test::OlderThan { seconds } }
}

/// Process that runs kind `k` in queue `q` on subjects owner `state` is 1. Failures back off for 60 s, doubling.
pub(crate) fn process() -> ProcessSettings {
    ProcessSettings {
        selector: Selector { all: vec![is("state", "1")], ..Selector::default() },
        queue: name("q"),
        kind: name("k"),
        payload: None,
        max_active: None,
        every_s: Some(300),
        excludes: Vec::new(),
        backoff: RetryPolicy::new(Some(60), Some(3600), Some(2.0), None).ok(),
    }
}

pub(crate) async fn declare(store: &Store, process: &str, settings: ProcessSettings) {
    store.put_process(T, name(process), settings, "me".into()).await.expect("puts");
}

/// Scans until no work remains for now. Returns the number of created jobs.
pub(crate) async fn scan(store: &Store) -> usize {
    let mut jobs = 0;
    loop {
        let scanned = store.scan().await.expect("scans");
        jobs += scanned.jobs;
        if !scanned.more {
            return jobs;
        }
    }
}

pub(crate) async fn counts(store: &Store, process: &str) -> (i64, i64, i64) {
    let process = store.process(T, &name(process)).await.expect("reads").expect("the process exists");
    (process.counts.eligible, process.counts.active, process.counts.in_backoff)
}

/// Returns the events of a subject, oldest first, each with its process and cause.
pub(crate) async fn timeline(store: &Store, subject: &str) -> Vec<String> {
    let items = store.timeline(T, TimelineOf::Subject(subject.into()), None, 1_000).await.expect("reads");
    let items = items.iter().rev().map(|item| {
        let parts = [Some(item.event.clone()), item.process.clone(), item.cause.clone()];
        parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
    });
    items.collect()
}

pub(crate) async fn finish_with(store: &Store, worker: WorkerId, values: &[(&str, &str)]) -> JobId {
    let claimed = claim_one(store, worker).await;
    let end = End::FinishWith { result: None, facts: facts(values) };
    assert_eq!(settle(store, worker, claimed.id, claimed.epoch, end).await, SettleStatus::Applied);
    claimed.id
}

pub(crate) fn on(subject: &str, process: &str) -> NewJob {
    let extras = Extras { subject: Some(label(subject)), process: Some(name(process)), ..Extras::default() };
    NewJob { extras: Some(Box::new(extras)), ..job("q") }
}

pub(crate) async fn lock_out(store: &Store, subject: &str, process: &str, until: Until) {
    let lockout = Lockout {
        subject: label(subject),
        process: process.into(),
        until,
        cause: "bad disk".into(),
        actor: "eve".into(),
    };
    store.lock_out(T, lockout).await.expect("locks out");
}

pub(crate) async fn assert_consistent(store: &Store) {
    assert_counters_match(store).await;
    assert_eq!(store.verify().await.expect("verifies").findings, []);
}

/// Requirement W1.
#[tokio::test]
async fn facts_have_a_time_and_only_named_ones_change() {
    on_both(async |db| {
        set(&db.store, "m-1", &[("ip", "\"10.0.0.1\""), ("state", "1")]).await;
        let before = card(&db.store, "m-1").await.subject;
        db.pass_ms(5_000).await;
        set(&db.store, "m-1", &[("state", "2.50")]).await;
        let after = card(&db.store, "m-1").await.subject;
        let items = |facts: &[store::fleet::subjects::facts::FactEntry]| -> Vec<(String, String)> {
            facts.iter().map(|fact| (fact.name.clone(), fact.value.clone())).collect()
        };
        assert_eq!(items(&after.facts), [("ip", "\"10.0.0.1\""), ("state", "2.50")].map(|(n, v)| (n.into(), v.into())));
        assert_eq!(after.facts[0].at, before.facts[0].at);
        assert!(after.facts[1].at.ms_since(before.facts[1].at) >= 5_000);
        let removed =
            SubjectChange { id: label("m-1"), kind: None, facts: vec![(name("ip"), None)], actor: "me".into() };
        db.store.put_subject(T, removed).await.expect("puts");
        assert_eq!(card(&db.store, "m-1").await.subject.facts.len(), 1);
        set(&db.store, "m-1", &[("state", "2.5")]).await;
        let expected = ["created", "facts_changed", "facts_changed", "facts_changed"];
        assert_eq!(timeline(&db.store, "m-1").await, expected, "an equal value is not a change");
    })
    .await;
}

/// Requirement W6.
#[tokio::test]
async fn repeated_agent_reports_are_recorded_once_a_minute() {
    on_both(async |db| {
        declare(&db.store, "install", process()).await;
        set(&db.store, "m-1", &[("load", "0")]).await;
        // Reports facts and returns how often the timeline records a change of facts.
        let report = async |values: &[(&str, &str)]| -> usize {
            let (id, facts, actor) = (label("m-1"), facts(values), "agent of m-1".into());
            let put = db.store.report_facts(T, SubjectChange { id, kind: None, facts, actor }).await;
            assert_eq!(put.expect("reports"), SubjectPut::Done);
            timeline(&db.store, "m-1").await.iter().filter(|event| *event == "facts_changed").count()
        };
        db.pass_ms(61_000).await;
        assert_eq!(report(&[("load", "1")]).await, 2);
        db.pass_ms(30_000).await;
        assert_eq!(report(&[("load", "2")]).await, 2);
        assert_eq!(
            report(&[("load", "3"), ("disk", "1")]).await,
            3,
            "the first change of another fact is recorded at once"
        );
        assert_eq!(report(&[("load", "4"), ("disk", "2")]).await, 3);
        assert_eq!(
            (report(&[("state", "1")]).await, report(&[("state", "2")]).await),
            (4, 5),
            "facts that a selector uses are always recorded"
        );
        db.pass_ms(61_000).await;
        assert_eq!(report(&[("load", "5")]).await, 6);
        set(&db.store, "m-1", &[("load", "6")]).await;
        assert_eq!(report(&[]).await, 7, "changes by other actors are always recorded");
        assert_eq!(
            (report(&[("mode", "\"warm\"")]).await, report(&[("mode", "\"hot\"")]).await),
            (8, 9),
            "changes of non-numbers are always recorded"
        );
    })
    .await;
}

/// Requirement W1.
#[tokio::test]
async fn a_changed_fact_creates_one_job_immediately() {
    on_both(async |db| {
        declare(&db.store, "install", process()).await;
        scan(&db.store).await;
        set(&db.store, "m-1", &[("state", "0")]).await;
        set(&db.store, "m-2", &[("state", "1"), ("ip", "7")]).await;
        assert_eq!(counts(&db.store, "install").await, (1, 0, 0));
        assert_eq!(scan(&db.store).await, 1);
        assert_eq!(scan(&db.store).await, 0, "at most one unfinished job");
        assert_eq!(counts(&db.store, "install").await, (0, 1, 0));
        let worker = register(&db.store, &["q"]).await;
        let claimed = claim_one(&db.store, worker).await;
        assert_eq!((claimed.subject.as_deref(), claimed.process.as_deref()), (Some("m-2"), Some("install")));
        assert_eq!(claimed.payload, r#"{"subject":"m-2","facts":{"ip":7,"state":1}}"#);
        let made = get(&db.store, claimed.id).await;
        assert_eq!((made.max_attempts, made.triggered_by.as_deref()), (1, Some("process:install")));
        assert_consistent(&db.store).await;
    })
    .await;
}

/// Requirement W1.
#[tokio::test]
async fn an_age_condition_becomes_true_when_due_and_a_heartbeat_postpones_it() {
    on_both(async |db| {
        let silent = Selector { all: vec![older("heartbeat", 600)], ..Selector::default() };
        declare(&db.store, "recover", ProcessSettings { selector: silent, ..process() }).await;
        scan(&db.store).await;
        set(&db.store, "m-1", &[("heartbeat", "true")]).await;
        set(&db.store, "m-2", &[("heartbeat", "true")]).await;
        db.pass_ms(400_000).await;
        set(&db.store, "m-2", &[("heartbeat", "true")]).await;
        assert_eq!((scan(&db.store).await, counts(&db.store, "recover").await), (0, (0, 0, 0)));
        db.pass_ms(120_000).await;
        assert_eq!(scan(&db.store).await, 0);
        db.pass_ms(81_000).await;
        assert_eq!((scan(&db.store).await, counts(&db.store, "recover").await), (1, (0, 1, 0)), "m-1 alone");
        db.pass_ms(400_000).await;
        assert_eq!((scan(&db.store).await, counts(&db.store, "recover").await), (1, (0, 2, 0)));
        assert_consistent(&db.store).await;
    })
    .await;
}

/// Requirement W1.
#[tokio::test]
async fn server_downtime_does_not_age_facts() {
    on_both(async |db| {
        let silent = Selector { all: vec![older("heartbeat", 600)], ..Selector::default() };
        let fresh = Selector { not: vec![older("heartbeat", 600)], ..Selector::default() };
        declare(&db.store, "recover", ProcessSettings { selector: silent, ..process() }).await;
        declare(&db.store, "update", ProcessSettings { selector: fresh, max_active: Some(0), ..process() }).await;
        scan(&db.store).await;
        set(&db.store, "m-1", &[("heartbeat", "true")]).await;
        set(&db.store, "m-2", &[("heartbeat", "true")]).await;
        let both = async || (counts(&db.store, "recover").await, counts(&db.store, "update").await);
        assert_eq!((scan(&db.store).await, both().await), (0, ((0, 0, 0), (2, 0, 0))));
        // The service is down for 15 minutes; then a node starts.
        db.clock.advance_ms(900_000);
        assert_eq!(scan(&db.store).await, 0, "no heartbeat has ended the outage yet");
        assert!(db.store.beat().await.expect("beats"), "the outage is noticed");
        assert_eq!((scan(&db.store).await, both().await), (0, ((0, 0, 0), (2, 0, 0))));
        db.pass_ms(200_000).await;
        set(&db.store, "m-1", &[("heartbeat", "true")]).await;
        set(&db.store, "m-2", &[("state", "1")]).await;
        assert_eq!((scan(&db.store).await, both().await), (0, ((0, 0, 0), (2, 0, 0))));
        db.pass_ms(101_000).await;
        assert_eq!((scan(&db.store).await, both().await), (1, ((0, 1, 0), (1, 0, 0))), "m-2 had time to report");
        assert_consistent(&db.store).await;
    })
    .await;
}

/// For example, one that a newer version stored.
/// Requirement X13.
#[tokio::test]
async fn a_short_timeline_retention_keeps_the_audit_events() {
    on_both(async |db| {
        set(&db.store, "m-1", &[("state", "1")]).await;
        db.store.pause_queue(T, name("q"), "me".into(), Some("tea".into())).await.expect("pauses");
        db.pass_ms(3_600_000).await;
        assert!(db.store.prune_timeline(60).await.expect("prunes") > 0);
        assert!(timeline(&db.store, "m-1").await.is_empty());
        assert_eq!(number(&db.store, "select count(*) from timeline where event = 'queue_paused'").await, 1);
    })
    .await;
}

/// Requirement W1.
#[tokio::test]
async fn a_new_selector_evaluates_every_subject() {
    on_both(async |db| {
        for number in 0..7 {
            set(&db.store, &format!("m-{number}"), &[("state", if number < 3 { "1" } else { "2" })]).await;
        }
        declare(&db.store, "install", process()).await;
        assert_eq!(scan(&db.store).await, 3);
        let other = Selector { all: vec![is("state", "2")], ..Selector::default() };
        declare(&db.store, "wipe", ProcessSettings { selector: other.clone(), ..process() }).await;
        assert_eq!(scan(&db.store).await, 4);
        declare(&db.store, "install", ProcessSettings { selector: other, ..process() }).await;
        assert_eq!(scan(&db.store).await, 4, "the three from before are not eligible any more");
        assert_eq!(counts(&db.store, "install").await, (0, 7, 0), "their jobs still exist");
        assert!(db.store.delete_process(T, name("install"), "ann").await.expect("deletes"));
        assert!(db.store.process(T, &name("install")).await.expect("reads").is_none());
        scan(&db.store).await;
        assert_eq!(number(&db.store, "select count(*) from standings where process = 'install'").await, 0);
        assert_eq!(number(&db.store, "select count(*) from processes").await, 1);
        assert_consistent(&db.store).await;
    })
    .await;
}

/// Requirement W1.
#[tokio::test]
async fn max_active_limits_jobs_and_the_next_is_created_when_one_ends() {
    on_both(async |db| {
        declare(&db.store, "install", ProcessSettings { max_active: Some(2), ..process() }).await;
        for number in 0..5 {
            set(&db.store, &format!("m-{number}"), &[("state", "1")]).await;
        }
        assert_eq!(scan(&db.store).await, 2);
        assert_eq!(counts(&db.store, "install").await, (3, 2, 0));
        let worker = register(&db.store, &["q"]).await;
        finish_with(&db.store, worker, &[("state", "2")]).await;
        assert_eq!(scan(&db.store).await, 1);
        assert_eq!(counts(&db.store, "install").await, (2, 2, 0));
        assert_consistent(&db.store).await;
    })
    .await;
}

/// Requirement W7.
#[tokio::test]
async fn eligible_subjects_are_listed_and_counted_in_job_order() {
    on_both(async |db| {
        declare(&db.store, "install", ProcessSettings { max_active: Some(1), ..process() }).await;
        scan(&db.store).await;
        for subject in ["c", "a", "b"] {
            set(&db.store, subject, &[("state", "1")]).await;
            db.pass_ms(10).await;
        }
        let listed = async |after: Option<(Time, String)>| -> Vec<(Time, String)> {
            let page = db.store.eligible_subjects(T, name("install"), after, 2).await.expect("lists");
            page.into_iter().map(|eligible| (eligible.ready_at, eligible.subject)).collect()
        };
        let first = listed(None).await;
        let second = listed(first.last().cloned()).await;
        let names: Vec<&str> = first.iter().chain(&second).map(|(_, subject)| subject.as_str()).collect();
        assert_eq!(names, ["c", "a", "b"], "in the order in which they became eligible");
        let process = db.store.process(T, &name("install")).await.expect("reads").expect("exists");
        assert_eq!(process.counts.oldest, Some(first[0].0));
        scan(&db.store).await;
        assert_eq!(listed(None).await.first().map(|(_, subject)| subject.as_str()), Some("a"));
        assert_eq!(counts(&db.store, "install").await, (2, 1, 0));
    })
    .await;
}

/// Requirement W1.
#[tokio::test]
async fn a_subject_that_stays_eligible_gets_a_job_every_interval() {
    on_both(async |db| {
        declare(&db.store, "inspect", process()).await;
        set(&db.store, "m-1", &[("state", "1")]).await;
        scan(&db.store).await;
        let worker = register(&db.store, &["q"]).await;
        finish_with(&db.store, worker, &[("seen", "1")]).await;
        assert_eq!((scan(&db.store).await, counts(&db.store, "inspect").await), (0, (0, 0, 0)));
        set(&db.store, "m-1", &[("state", "0")]).await;
        set(&db.store, "m-1", &[("state", "1")]).await;
        assert_eq!(scan(&db.store).await, 1, "a change is noticed at once");
        finish_with(&db.store, worker, &[]).await;
        db.pass_ms(200_000).await;
        assert_eq!(scan(&db.store).await, 0);
        db.pass_ms(101_000).await;
        assert_eq!(scan(&db.store).await, 1, "after every_s");
    })
    .await;
}

/// Requirement W2.
#[tokio::test]
async fn a_subject_has_one_claim_per_process_and_exclusive_processes_wait() {
    on_both(async |db| {
        let exclusive = ProcessSettings { excludes: vec![name("wipe")], ..process() };
        let never = Selector { all: vec![is("never", "1")], ..Selector::default() };
        declare(&db.store, "install", ProcessSettings { selector: never, ..exclusive }).await;
        let jobs = vec![on("m-1", "install"), on("m-1", "wipe"), on("m-1", "ping"), on("m-1", "install")];
        let ids: Vec<JobId> = push_all(&db.store, jobs).await.iter().map(|job| job.id).collect();
        let worker = register(&db.store, &["q"]).await;
        let first = claim(&db.store, worker, 10).await;
        assert_eq!(first.iter().map(|job| job.id).collect::<Vec<_>>(), [ids[0], ids[2]]);
        for waiting in [ids[1], ids[3]] {
            let why = db.store.why(T, waiting).await.expect("asks").expect("exists");
            assert_eq!(why.reason.as_str(), "subject_busy");
        }
        assert_consistent(&db.store).await;
        finish(&db.store, worker, &first[0]).await;
        let second = claim(&db.store, worker, 10).await;
        assert_eq!(second.iter().map(|job| job.id).collect::<Vec<_>>(), [ids[1]], "the older of the two");
        finish(&db.store, worker, &second[0]).await;
        assert_eq!(claim(&db.store, worker, 10).await.iter().map(|job| job.id).collect::<Vec<_>>(), [ids[3]]);
        assert_consistent(&db.store).await;
    })
    .await;
}

/// Requirement W6.
#[tokio::test]
async fn a_subject_with_live_jobs_cannot_be_deleted_and_its_history_remains() {
    on_both(async |db| {
        declare(&db.store, "install", process()).await;
        set(&db.store, "m-1", &[("state", "1")]).await;
        scan(&db.store).await;
        let delete = async || db.store.delete_subject(T, label("m-1"), "eve".into()).await.expect("answers");
        let SubjectDeleted::Busy(work) = delete().await else { panic!("the subject has live work") };
        assert_eq!((work[0].process.as_str(), work[0].state.as_str()), ("install", "queued"));
        let worker = register(&db.store, &["q"]).await;
        let claimed = claim_one(&db.store, worker).await;
        db.store.cancel(T, claimed.id, "eve".into()).await.expect("cancels");
        assert!(matches!(delete().await, SubjectDeleted::Busy(_)), "the worker still holds the subject");
        settle(&db.store, worker, claimed.id, claimed.epoch, End::Cancel).await;
        lock_out(&db.store, "m-1", "*", Until::Forever).await;
        assert_eq!(delete().await, SubjectDeleted::Deleted);
        assert_eq!(delete().await, SubjectDeleted::NotFound);
        assert!(db.store.subject(T, label("m-1")).await.expect("reads").is_none());
        let expected =
            ["created", "facts_changed", "started install", "canceled install", "locked_out * bad disk", "deleted"];
        assert_eq!(timeline(&db.store, "m-1").await, expected);
        for table in ["backoffs", "standings", "subjects"] {
            assert_eq!(number(&db.store, &format!("select count(*) from {table}")).await, 0, "{table}");
        }
        assert_consistent(&db.store).await;
    })
    .await;
}

/// Requirement W6.
#[tokio::test]
async fn the_timeline_has_pages_without_gaps_or_repeats() {
    on_both(async |db| {
        for value in 0..25 {
            set(&db.store, "m-1", &[("state", &value.to_string())]).await;
            set(&db.store, "m-2", &[("state", &value.to_string())]).await;
        }
        let page =
            async |before| db.store.timeline(T, TimelineOf::Subject("m-1".into()), before, 10).await.expect("reads");
        let mut seen = Vec::new();
        let mut before = None;
        loop {
            let items = page(before).await;
            let Some(last) = items.last() else { break };
            before = Some(last.id);
            seen.extend(items);
        }
        assert_eq!(seen.len(), 26);
        assert!(seen.windows(2).all(|pair| pair[0].id > pair[1].id), "newest first");
        let all = db.store.timeline(T, TimelineOf::Everything, None, 1_000).await.expect("reads");
        assert_eq!(all.len(), 52);
        assert!(page(None).await[0].detail.as_deref().is_some_and(|detail| detail.contains("24")));
    })
    .await;
}

#[tokio::test]
async fn a_pushed_job_counts_as_a_job_of_the_process() {
    on_both(async |db| {
        let pushed = push(&db.store, on("m-1", "install")).await;
        declare(&db.store, "install", process()).await;
        set(&db.store, "m-1", &[("state", "1")]).await;
        scan(&db.store).await;
        assert_eq!(counts(&db.store, "install").await, (0, 1, 0));
        assert_eq!(number(&db.store, "select count(*) from jobs").await, 1);
        let worker = register(&db.store, &["q"]).await;
        assert_eq!(finish_with(&db.store, worker, &[("state", "2")]).await, pushed);
        assert_eq!(counts(&db.store, "install").await, (0, 0, 0));
    })
    .await;
}

/// Requirement W8.
#[tokio::test]
async fn a_credential_identifies_its_subject_and_replaces_the_previous_one() {
    on_both(async |db| {
        let credential = async |hash: [u8; 32]| {
            db.store.put_subject_credential(T, label("m-1"), hash, "me".into()).await.expect("puts")
        };
        assert!(!credential([1; 32]).await, "the subject does not exist yet");
        set(&db.store, "m-1", &[]).await;
        assert!(credential([1; 32]).await);
        let owner = async |hash| db.store.subject_of_credential(hash).await.expect("reads");
        assert_eq!(owner([1; 32]).await, Some((T, Label::stored("m-1"))));
        assert!(credential([2; 32]).await);
        assert_eq!((owner([1; 32]).await, owner([2; 32]).await.is_some()), (None, true));
        db.store.remove_subject_credential(T, label("m-1"), "me".into()).await.expect("removes");
        assert_eq!(owner([2; 32]).await, None);
    })
    .await;
}
