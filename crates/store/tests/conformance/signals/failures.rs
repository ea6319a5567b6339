//! Failure groups, learned signatures and predictions.

use std::collections::HashMap;

use domain::limits::{HISTORY_RETENTION_DEFAULT_S, RETENTION_DEFAULT_S};
use domain::signals::signature::{FailureCase, SignaturePattern};
use domain::{JobError, JobId, WorkerId};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use store::Store;
use store::queue::enqueue::{Extras, NewJob};
use store::queue::settle::End;
use store::signals::failures::replay::GroupReplay;
use store::signals::read::{SignalRead, SignalSource};
use store::signals::refine::SignalChange;
use store::signals::signatures::change::{NewSignature, SignatureChange, SignatureChanged};
use store::signals::signatures::index::Prediction;
use store::signals::signatures::{Signature, SignatureOutcome, SignatureStatus};
use testkit::{job, label, name, on_both, on_postgres};

use crate::support::*;

pub(crate) fn on_subject(subject: &str) -> NewJob {
    let extras = Extras { subject: Some(label(subject)), ..Extras::default() };
    NewJob { kind: name("scan"), max_attempts: 1, extras: Some(Box::new(extras)), ..job("q") }
}

pub(crate) fn error(code: &str, message: &str) -> JobError {
    JobError { code: code.into(), message: message.into(), retryable: false }
}

/// Runs a job until it fails in the given phase. Returns its id.
pub(crate) async fn fail(store: &Store, worker: WorkerId, job: NewJob, phase: &str, error: JobError) -> JobId {
    push(store, job).await;
    let claimed = claim_one(store, worker).await;
    let change = SignalChange { epoch: claimed.epoch, phase: Some(phase.into()), ..SignalChange::default() };
    store.signal(T, claimed.id, change).await.expect("signals");
    settle(store, worker, claimed.id, claimed.epoch, End::Fail(error)).await;
    claimed.id
}

pub(crate) async fn succeed(store: &Store, worker: WorkerId, job: NewJob) {
    push(store, job).await;
    let claimed = claim_one(store, worker).await;
    finish(store, worker, &claimed).await;
}

pub(crate) async fn learn(store: &Store) {
    while store.learn_failures().await.expect("learns") > 0 {}
}

async fn source(store: &Store, job: JobId) -> SignalSource {
    match store.signal_source(T, job).await.expect("reads") {
        SignalRead::Found(source) => *source,
        _ => panic!("the job has a signal"),
    }
}

async fn prediction_of(db: &testkit::Database, job: JobId) -> Option<Prediction> {
    let index = db.store.signature_index(T).await.expect("reads");
    index.predict(&source(&db.store, job).await, db.clock.now())
}

fn new(pattern: SignaturePattern, confidence: f64) -> NewSignature {
    let matcher = pattern.matcher().expect("a good pattern");
    let outcome = SignatureOutcome { likely_cause: Some("a cause".into()), ..SignatureOutcome::default() };
    NewSignature { matcher, outcome, confidence, expires_at: None, by: "me".into() }
}

fn signature_of(changed: SignatureChanged) -> Signature {
    match changed {
        SignatureChanged::Done(signature) => *signature,
        other => panic!("{other:?}"),
    }
}

/// Requirement S7.
#[tokio::test]
async fn three_similar_failures_propose_a_signature_that_predicts_the_next() {
    on_both(async |db| {
        let worker = register_with_long_lease(&db.store).await;
        for n in 0..3 {
            let message = format!("layer {n} of 10.0.0.{n}:5000 is broken");
            fail(&db.store, worker, on_subject("nginx"), "analyze", error("LAYER_EXTRACT_FAILED", &message)).await;
            db.pass_ms(60_000).await;
        }
        learn(&db.store).await;
        let groups = db.store.list_failures(T, None, 10).await.expect("lists");
        assert_eq!(groups.len(), 1, "one cause: {groups:?}");
        let group = &groups[0];
        assert_eq!((group.count, group.message_pattern.as_str()), (3, "layer # of <address> is broken"));
        assert_eq!((group.subjects.clone(), group.trend()), (vec!["nginx".to_owned()], "new"));
        let signatures = db.store.list_signatures(T, None, 10).await.expect("lists");
        let learnt = &signatures[0];
        assert_eq!((signatures.len(), learnt.status, learnt.samples), (1, SignatureStatus::Proposed, 3));
        assert!((learnt.confidence - 0.5).abs() < 1e-9);
        assert_eq!(group.signature, Some(learnt.id));

        let next = push(&db.store, on_subject("nginx")).await;
        let prediction = prediction_of(&db, next).await.expect("a failure is predicted");
        let evidence = prediction.evidence.expect("with evidence");
        assert_eq!((prediction.signature.id, evidence.failed, evidence.of), (learnt.id, 3, 3));
        let other = push(&db.store, on_subject("redis")).await;
        assert!(prediction_of(&db, other).await.is_none(), "another subject has no prediction");
        assert!(db.store.list_failures(domain::TenantId(77), None, 10).await.expect("lists").is_empty(), "X6");
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement S7.
#[tokio::test]
async fn repair_times_and_recurrences_are_learned() {
    on_both(async |db| {
        let worker = register_with_long_lease(&db.store).await;
        let boom = || error("RATE_LIMITED", "too many requests");
        for _ in 0..3 {
            fail(&db.store, worker, on_subject("nginx"), "fetch", boom()).await;
        }
        learn(&db.store).await;
        assert_eq!(db.store.learn_repairs().await.expect("learns"), 0, "not repaired yet");
        db.pass_ms(6 * 3_600_000).await;
        let worker = register_with_long_lease(&db.store).await;
        succeed(&db.store, worker, on_subject("nginx")).await;
        assert_eq!(db.store.learn_repairs().await.expect("looks"), 1);
        let learnt = db.store.list_signatures(T, None, 10).await.expect("lists").remove(0);
        let mttr = learnt.outcome.mttr_p50_s.expect("a repair was seen");
        assert!((21_600.0..22_200.0).contains(&mttr), "{mttr}");

        let change = SignatureChange { confirmed: Some(true), fixed: Some(true), ..SignatureChange::default() };
        let fixed = signature_of(db.store.change_signature(T, learnt.id, change).await.expect("changes"));
        assert_eq!((fixed.status, fixed.recurred_at, fixed.version), (SignatureStatus::Confirmed, None, 2));
        assert!(fixed.confidence >= 0.8 && fixed.fixed_at.is_some());
        db.pass_ms(1_000).await;
        fail(&db.store, worker, on_subject("nginx"), "fetch", boom()).await;
        learn(&db.store).await;
        let again = db.store.signature(T, learnt.id).await.expect("reads").expect("is there");
        assert!(again.recurred_at.is_some(), "the failure recurred after its repair");
        assert!(db.store.list_failures(T, None, 1).await.expect("lists")[0].recurred_at.is_some());
    })
    .await;
}

/// Generates messages of a cause with noise: numbers, ids, paths, addresses, times, names.
fn message(cause: usize, rng: &mut StdRng) -> (&'static str, String) {
    let n: u32 = rng.random_range(1..100_000);
    let id: u128 = rng.random();
    let host = format!("10.{}.{}.{}", n % 250, n % 40, n % 7);
    match cause {
        0 => (
            "LAYER_EXTRACT_FAILED",
            format!("cannot extract layer sha256:{id:064x} to /var/lib/w/{n}/fs: no space left"),
        ),
        1 => {
            ("RATE_LIMITED", format!("GET https://{host}/v2/library/app-{n}/manifests/v{n} answered 429 after {n} ms"))
        }
        2 => ("DB_DOWN", format!("connection to {host}:{} refused after {} attempts", 5_000 + n % 900, n % 9 + 1)),
        3 => ("OOM", format!("process {n} was killed: out of memory at {n} MiB")),
        4 => ("BAD_MANIFEST", format!("manifest of 'app:{n}' is not valid at 2026-01-{:02}T12:00:00Z", n % 28 + 1)),
        5 => ("DB_DOWN", format!("deadlock detected by worker {id:032x} in transaction {n}")),
        6 => ("TIMEOUT", format!("no answer from user-{n}@mail.example.com within {n} ms")),
        _ => ("PARSE", format!("unexpected token '{n}' at line {n} of /tmp/{id:08x}.json")),
    }
}

/// Requirement S7.
#[tokio::test]
async fn mixed_failures_are_grouped_by_cause_and_predicted() {
    on_both(async |db| {
        let mut rng = StdRng::seed_from_u64(8);
        let worker = register_with_long_lease(&db.store).await;
        let mut cause_of: HashMap<JobId, usize> = HashMap::new();
        for n in 0..160 {
            let cause = n % 8;
            let (code, message) = message(cause, &mut rng);
            // Each cause fails a few subjects of its own, three times each.
            let subject = format!("app-{cause}-{}", n / 8 % 5);
            let id = fail(&db.store, worker, on_subject(&subject), "analyze", error(code, &message)).await;
            cause_of.insert(id, cause);
        }
        learn(&db.store).await;
        let mut right = 0;
        let members = texts(
            &db.store,
            "select hex(group_id) || ' ' || hex(job) from failure_jobs",
            "select replace(group_id::text, '-', '') || ' ' || replace(job::text, '-', '') from failure_jobs",
        )
        .await;
        let mut groups: HashMap<String, HashMap<usize, usize>> = HashMap::new();
        for member in &members {
            let (group, job) = member.split_once(' ').expect("two words");
            let job = JobId::new(job.parse().expect("an id"));
            *groups.entry(group.to_lowercase()).or_default().entry(cause_of[&job]).or_default() += 1;
        }
        groups.values().for_each(|causes| right += causes.values().max().expect("a group has members"));
        assert_eq!(members.len(), 160);
        assert!(right * 100 >= 95 * 160, "purity {right} of 160 in {} groups", groups.len());
        assert!(groups.len() <= 12, "one cause is one group, or nearly: {}", groups.len());

        let mut foreseen = 0;
        for cause in 0..8 {
            let next = push(&db.store, on_subject(&format!("app-{cause}-1"))).await;
            let (code, _) = message(cause, &mut rng);
            let prediction = prediction_of(&db, next).await;
            foreseen += usize::from(
                prediction.is_some_and(|prediction| prediction.signature.pattern.error_code.as_deref() == Some(code)),
            );
        }
        assert_eq!(foreseen, 8, "later jobs on the same subjects get their cause predicted");
    })
    .await;
}

/// Requirement S7.
#[tokio::test]
async fn a_failure_group_is_retried_once() {
    on_both(async |db| {
        let worker = register_with_long_lease(&db.store).await;
        for n in 0..4 {
            fail(&db.store, worker, on_subject(&format!("m-{n}")), "fetch", error("BOOM", "it broke")).await;
        }
        learn(&db.store).await;
        let group = db.store.list_failures(T, None, 10).await.expect("lists")[0].id;
        let by = "me".into();
        let replay = async |limit| db.store.replay_failures(T, group, limit, &by).await.expect("replays");
        assert_eq!(replay(1).await.expect("is there").made.len(), 1);
        let rest = replay(100).await.expect("is there");
        assert_eq!((rest.made.len(), rest.unavailable), (3, 0));
        assert_eq!(replay(100).await.expect("is there").made, [], "idempotent");
        assert_eq!(claim(&db.store, worker, 10).await.len(), 4);
        let strangers = db.store.replay_failures(domain::TenantId(77), group, 10, &by).await.expect("answers");
        assert_eq!(strangers, None, "X6");
    })
    .await;
}

/// Requirement S7.
#[tokio::test]
async fn pruned_jobs_of_a_failure_group_are_replayed_from_dead_letters() {
    on_both(async |db| {
        let worker = register_with_long_lease(&db.store).await;
        for n in 0..2 {
            fail(&db.store, worker, on_subject(&format!("m-{n}")), "fetch", error("BOOM", "it broke")).await;
        }
        learn(&db.store).await;
        let group = db.store.list_failures(T, None, 10).await.expect("lists")[0].id;
        db.pass_ms((RETENTION_DEFAULT_S + 60) * 1_000).await;
        assert_eq!(db.store.prune(HISTORY_RETENTION_DEFAULT_S).await.expect("prunes").jobs, 2);
        let by = "me".into();
        let replay =
            async |limit| db.store.replay_failures(T, group, limit, &by).await.expect("replays").expect("is there");
        // A replayed dead letter does not block the next one.
        for _ in 0..2 {
            let replayed = replay(1).await;
            assert_eq!((replayed.made.len(), replayed.unavailable), (1, 0));
        }
        assert_eq!(replay(100).await, GroupReplay::default(), "idempotent");
        let worker = register_with_long_lease(&db.store).await;
        let claimed = claim(&db.store, worker, 10).await;
        let mut subjects: Vec<&str> = claimed.iter().filter_map(|job| job.subject.as_deref()).collect();
        subjects.sort_unstable();
        assert_eq!(subjects, ["m-0", "m-1"]);
    })
    .await;
}

/// Requirement S6.
#[tokio::test]
async fn the_most_confident_signature_matches_first_then_the_one_with_most_samples() {
    on_both(async |db| {
        let kind = |kind: &str| SignaturePattern { kind: Some(kind.into()), ..SignaturePattern::default() };
        let subject = SignaturePattern { subject_pattern: Some("^nginx".into()), ..SignaturePattern::default() };
        let made = async |pattern: SignaturePattern, sure| {
            signature_of(db.store.create_signature(T, new(pattern, sure)).await.expect("makes"))
        };
        let (broad, narrow) = (made(kind("scan"), 0.5).await, made(subject, 0.9).await);
        let best = async |case: FailureCase<'static>| {
            let index = db.store.signature_index(T).await.expect("reads");
            index.best(case, db.clock.now()).map(|signature| signature.id)
        };
        let scan = FailureCase { kind: Some("scan"), subject: Some("nginx:1"), ..FailureCase::default() };
        assert_eq!(best(scan).await, Some(narrow.id));
        assert_eq!(best(FailureCase { subject: Some("redis"), ..scan }).await, Some(broad.id));
        assert_eq!(best(FailureCase { kind: Some("other"), subject: None, ..scan }).await, None);
        let again = db.store.create_signature(T, new(kind("scan"), 0.1)).await.expect("answers");
        assert_eq!(again, SignatureChanged::Exists(broad.id), "one pattern, one signature");
        assert!(
            matches!(
                db.store.create_signature(domain::TenantId(1), new(kind("scan"), 0.1)).await.expect("answers"),
                SignatureChanged::Done(_)
            ),
            "per tenant"
        );
        let change = |change: SignatureChange| db.store.change_signature(T, narrow.id, change);
        change(SignatureChange { muted: Some(true), ..Default::default() }).await.expect("mutes");
        assert_eq!(best(scan).await, Some(broad.id));
        change(SignatureChange {
            muted: Some(false),
            expires_at: Some(Some(db.clock.now().plus_s(60))),
            ..Default::default()
        })
        .await
        .expect("expires");
        assert_eq!(best(scan).await, Some(narrow.id));
        db.pass_ms(61_000).await;
        assert_eq!(best(scan).await, Some(broad.id), "the narrow signature has expired");
        let merged = db.store.merge_signatures(T, narrow.id, broad.id).await.expect("merges").expect("both are there");
        assert_eq!(merged.id, broad.id);
        assert_eq!(db.store.signature(T, narrow.id).await.expect("reads"), None);
        assert!(db.store.delete_signature(T, broad.id, "ann").await.expect("deletes"));
        assert!(!db.store.delete_signature(T, broad.id, "ann").await.expect("answers"));
    })
    .await;
}

/// Requirement S8.
#[tokio::test]
async fn a_manual_signature_predicts_for_its_kind_and_subject() {
    on_both(async |db| {
        let pattern = SignaturePattern {
            kind: Some("scan".into()),
            error_code: Some("X".into()),
            subject_pattern: Some("^registry/".into()),
            ..SignaturePattern::default()
        };
        let made = signature_of(db.store.create_signature(T, new(pattern, 0.9)).await.expect("makes"));
        let hit = push(&db.store, on_subject("registry/app")).await;
        assert_eq!(prediction_of(&db, hit).await.map(|prediction| prediction.signature.id), Some(made.id));
        let by_image = NewJob { kind: name("scan"), payload: r#"{"image": "registry/other:1"}"#.into(), ..job("q") };
        let by_image = push(&db.store, by_image).await;
        assert!(prediction_of(&db, by_image).await.is_some(), "without a subject the payload's image counts");
        let of_another_kind = NewJob { kind: name("other"), ..on_subject("registry/app") };
        let of_no_subject = NewJob { kind: name("scan"), ..job("q") };
        for miss in [on_subject("docker.io/app"), of_no_subject, of_another_kind, job("q")] {
            let miss = push(&db.store, miss).await;
            assert!(prediction_of(&db, miss).await.is_none());
        }
        let worker = register_with_long_lease(&db.store).await;
        claim(&db.store, worker, 10).await;
        assert!(prediction_of(&db, hit).await.is_none(), "the job has begun");
    })
    .await;
}

/// Requirement S10.
#[tokio::test]
async fn unmatched_learned_signatures_are_disabled_and_old_signals_are_pruned() {
    on_both(async |db| {
        let worker = register_with_long_lease(&db.store).await;
        for _ in 0..3 {
            fail(&db.store, worker, on_subject("nginx"), "fetch", error("BOOM", "it broke")).await;
        }
        let signaled = push(&db.store, job("q")).await;
        let claimed = claim_one(&db.store, worker).await;
        let change = SignalChange { epoch: claimed.epoch, summary: Some("hm".into()), ..SignalChange::default() };
        db.store.signal(T, signaled, change).await.expect("signals");
        finish(&db.store, worker, &claimed).await;
        learn(&db.store).await;
        let manual = SignaturePattern { kind: Some("other".into()), ..SignaturePattern::default() };
        let sure = signature_of(db.store.create_signature(T, new(manual, 0.9)).await.expect("makes"));
        assert_eq!(db.store.prune_signals().await.expect("prunes"), Default::default());
        db.pass_ms(25 * 3_600_000).await;
        assert_eq!(db.store.prune_signals().await.expect("prunes").signals, 1);
        assert_eq!(number(&db.store, "select count(*) from signals").await, 0);
        db.pass_ms(31 * 86_400_000).await;
        assert_eq!(db.store.prune_signals().await.expect("prunes").signatures, 1);
        let listed = db.store.list_signatures(T, None, 10).await.expect("lists");
        let enabled: Vec<_> =
            listed.iter().filter(|signature| signature.enabled).map(|signature| signature.id).collect();
        assert_eq!(enabled, [sure.id], "a learned signature without a match for a month is disabled");
        db.pass_ms(60 * 86_400_000).await;
        assert_eq!(db.store.prune_signals().await.expect("prunes").failures, 1);
        assert_eq!(number(&db.store, "select count(*) from failure_jobs").await, 0);
    })
    .await;
}

/// Generates random patterns from all parts of the portable regex syntax.
fn random_regex(rng: &mut StdRng, depth: usize) -> String {
    let atoms = ["a", "b", "c", "1", ".", "\\d", "\\w", "\\s", "[abc]", "[^ab]", "[a-c0-9_-]", "\\.", "\\+", "-", "ä"];
    let mut text = String::new();
    for _ in 0..rng.random_range(1..4) {
        let atom = match rng.random_range(0..10) {
            0 if depth > 0 => {
                format!("({}|{})", random_regex(rng, depth - 1), random_regex(rng, depth - 1))
            }
            1 if depth > 0 => format!("(?:{})", random_regex(rng, depth - 1)),
            _ => atoms[rng.random_range(0..atoms.len())].to_owned(),
        };
        text.push_str(&atom);
        text.push_str(["", "", "", "*", "+", "?", "{2}", "{1,3}", "{2,}"][rng.random_range(0..9)]);
    }
    match rng.random_range(0..6) {
        0 => format!("^{text}"),
        1 => format!("{text}$"),
        _ => text,
    }
}

/// Requirement S6.
#[tokio::test]
async fn rust_and_postgres_match_every_pattern_identically() {
    on_postgres(async |db| {
        let psql = psql(&db.admin).await;
        let mut rng = StdRng::seed_from_u64(6);
        let alphabet: Vec<char> = "abc1. -+_ä".chars().collect();
        for round in 0..400 {
            let pattern =
                SignaturePattern { subject_pattern: Some(random_regex(&mut rng, 2)), ..SignaturePattern::default() };
            let text = pattern.subject_pattern.clone().expect("a pattern");
            let Ok(matcher) = pattern.matcher() else { continue };
            let portable = domain::signals::signature::portable(&text).expect("the pattern was accepted before");
            let subject: String =
                (0..rng.random_range(0..8)).map(|_| alphabet[rng.random_range(0..alphabet.len())]).collect();
            let rust = matcher.matches(FailureCase { subject: Some(&subject), ..FailureCase::default() });
            let row = psql.client.query_one("select $1::text ~ $2::text", &[&subject, &portable]).await;
            let postgres: bool = row.unwrap_or_else(|error| panic!("{text} as {portable}: {error:?}")).get(0);
            assert_eq!(rust, postgres, "round {round}: {subject:?} against {text} as {portable}");
        }
    })
    .await;
}

/// Requirement S6.
#[tokio::test]
async fn the_sql_function_match_failure_signature_matches_the_program() {
    on_postgres(async |db| {
        let psql = psql(&db.admin).await;
        let pattern = SignaturePattern {
            phase: Some("fetch".into()),
            subject_pattern: Some("^nginx:\\d+$".into()),
            ..SignaturePattern::default()
        };
        let made = signature_of(db.store.create_signature(T, new(pattern, 0.7)).await.expect("makes"));
        let find = async |arguments: &str| -> Option<(uuid::Uuid, f64)> {
            let text = format!("select signature_id, confidence from windlass.match_failure_signature({arguments})");
            let row = psql.client.query_opt(&text, &[]).await.expect("asks");
            row.map(|row| (row.get(0), row.get(1)))
        };
        assert_eq!(find("phase => 'fetch', image_reference => 'nginx:17'").await, Some((made.id, 0.7)));
        assert_eq!(find("'fetch', null, 'nginx:latest'").await, None);
        assert_eq!(find("phase => 'fetch'").await, None, "no match without a subject");
        assert_eq!(find("").await, None);
    })
    .await;
}

/// Requirement S6.
#[test]
fn a_signature_match_is_bounded_in_time() {
    // The classic pattern that is exponential in backtracking engines.
    let pattern =
        SignaturePattern { subject_pattern: Some("(a|a|aa)*(a|aa)*(a*)*c$".into()), ..SignaturePattern::default() };
    let matcher = pattern.matcher().expect("a valid pattern");
    let subject = "a".repeat(100_000);
    let once = |_| {
        let began = std::time::Instant::now();
        assert!(!matcher.matches(FailureCase { subject: Some(&subject), ..FailureCase::default() }));
        began.elapsed()
    };
    // Other processes may delay some of the runs, but not every one.
    let fastest = (0..1_000).map(once).min().expect("a thousand");
    assert!(fastest < std::time::Duration::from_millis(5), "{fastest:?}");
}
