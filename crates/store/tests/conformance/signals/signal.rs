use std::time::Duration;

use domain::{Epoch, JobId, JobState, QueueSettings, Refusal, SignalKind, TenantId};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use store::fleet::backoffs::lockout::Until;
use store::queue::enqueue::{Extras, NewJob, Unique};
use store::queue::list::JobFilter;
use store::queue::settle::{End, SettleStatus};
use store::signals::read::{SignalRead, SignalSource};
use store::signals::refine::{SignalChange, Signaled, StoredSignal};
use store::{CacheStatus, DatabaseUrl, Store};
use testkit::{job, label, name, on_both, on_postgres};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_postgres::AsyncMessage;

use crate::fleet::subjects::{lock_out, on};
use crate::support::*;

fn change_at(epoch: Epoch, state: Option<JobState>) -> SignalChange {
    SignalChange { epoch, state, ..SignalChange::default() }
}

/// Requirement Q2.
#[tokio::test]
async fn a_job_moves_from_loading_to_working_and_not_back() {
    on_both(async |db| {
        let id = push(&db.store, job("q")).await;
        let worker = register(&db.store, &["q"]).await;
        let epoch = claim_one(&db.store, worker).await.epoch;
        let signal = async |change| db.store.signal(T, id, change).await.expect("signals");
        assert_eq!(signal(change_at(epoch, Some(JobState::Loading))).await, Signaled::Applied);
        assert_eq!(state(&db.store, id).await, "loading");
        let progress = SignalChange { progress: Some(0.5), phase: Some("fetch".into()), ..change_at(epoch, None) };
        assert_eq!(signal(progress).await, Signaled::Applied);
        let read = get(&db.store, id).await;
        assert_eq!((read.state, read.progress, read.phase.as_deref()), (JobState::Loading, Some(0.5), Some("fetch")));
        assert_eq!(signal(change_at(epoch, Some(JobState::Working))).await, Signaled::Applied);
        let back = signal(change_at(epoch, Some(JobState::Loading))).await;
        assert_eq!(back, Signaled::Refused(Refusal::Illegal { state: JobState::Working }));
        assert_eq!(state(&db.store, id).await, "working");
        assert_eq!(get(&db.store, id).await.progress, Some(0.5), "an omitted field stays");
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement X3.
#[tokio::test]
async fn a_signal_with_a_stale_epoch_is_rejected_and_changes_nothing() {
    on_both(async |db| {
        let id = push(&db.store, job("q")).await;
        let worker = register(&db.store, &["q"]).await;
        let first = claim_one(&db.store, worker).await;
        settle(&db.store, worker, id, first.epoch, End::Release).await;
        let late =
            || SignalChange { summary: Some("late".into()), progress: Some(0.9), ..change_at(first.epoch, None) };
        let signal = async |change| db.store.signal(T, id, change).await.expect("answers");
        assert_eq!(signal(late()).await, Signaled::Refused(Refusal::ClaimLost), "the job has no claim");
        let second = claim_one(&db.store, worker).await;
        let version = get(&db.store, id).await.version;
        assert_eq!(signal(late()).await, Signaled::Refused(Refusal::ClaimLost), "another claim has it");
        let read = get(&db.store, id).await;
        assert_eq!((read.version, read.progress), (version, None));
        assert!(reported_of(&db.store, id).await.is_none());
        finish(&db.store, worker, &second).await;
        assert_eq!(signal(late()).await, Signaled::Refused(Refusal::ClaimLost));
        assert_eq!(signal(change_at(second.epoch, None)).await, Signaled::Refused(Refusal::AlreadyEnded));
        let unknown = db.store.signal(domain::TenantId(77), id, change_at(second.epoch, None)).await.expect("answers");
        assert_eq!(unknown, Signaled::NotFound, "another tenant's job is not found");
    })
    .await;
}

/// Requirement S2.
#[tokio::test]
async fn a_signal_update_keeps_omitted_fields() {
    on_both(async |db| {
        let id = push(&db.store, job("q")).await;
        let worker = register(&db.store, &["q"]).await;
        let epoch = claim_one(&db.store, worker).await.epoch;
        let first = SignalChange {
            summary: Some("pulling".into()),
            last_known_outcome: Some(r#"{"state":"failed"}"#.into()),
            eta_s: Some(12.5),
            ..change_at(epoch, None)
        };
        db.store.signal(T, id, first).await.expect("signals");
        let before = get(&db.store, id).await.version;
        let second = SignalChange { summary: Some("unpacking".into()), ..change_at(epoch, None) };
        db.store.signal(T, id, second).await.expect("signals");
        let stored = reported_of(&db.store, id).await.expect("is there");
        assert_eq!(stored.summary.as_deref(), Some("unpacking"));
        assert_eq!(stored.last_known_outcome.as_deref(), Some(r#"{"state":"failed"}"#));
        assert!(get(&db.store, id).await.version > before);
    })
    .await;
}

/// Requirement S1.
#[tokio::test]
async fn a_phase_is_built_in_or_declared_by_the_queue() {
    on_both(async |db| {
        let worker = register(&db.store, &["q"]).await;
        let id = push(&db.store, job("q")).await;
        let epoch = claim_one(&db.store, worker).await.epoch;
        let change_at = async |phase: &str| {
            let change = SignalChange { epoch, phase: Some(phase.into()), ..SignalChange::default() };
            db.store.signal(T, id, change).await.expect("answers")
        };
        assert_eq!(change_at("pull").await, Signaled::UnknownPhase);
        assert_eq!(change_at("restore").await, Signaled::Applied);
        let settings = QueueSettings { phases: vec![name("pull")], ..QueueSettings::default() };
        db.store.put_queue(T, name("q"), settings, "me".into()).await.expect("puts");
        assert_eq!(change_at("pull").await, Signaled::Applied);
        assert_eq!(get(&db.store, id).await.phase.as_deref(), Some("pull"));
        assert_eq!(change_at("push").await, Signaled::UnknownPhase);
        assert_eq!(get(&db.store, id).await.phase.as_deref(), Some("pull"), "a rejected signal changes nothing");
    })
    .await;
}

async fn source(store: &Store, job: JobId) -> SignalSource {
    match store.signal_source(T, job).await.expect("reads") {
        SignalRead::Found(source) => *source,
        _ => panic!("the job has a signal"),
    }
}

async fn reported_of(store: &Store, job: JobId) -> Option<StoredSignal> {
    source(store, job).await.reported
}

fn with(change: impl FnOnce(&mut Extras)) -> NewJob {
    let mut extras = Extras::default();
    change(&mut extras);
    NewJob { extras: Some(Box::new(extras)), ..job("q") }
}

/// Requirement S2.
#[tokio::test]
async fn late_and_duplicate_signals_never_regress_or_cross_tenants() {
    on_both(async |db| {
        for seed in 0..12 {
            let mut rng = StdRng::seed_from_u64(seed);
            let id = push(&db.store, job("q")).await;
            let worker = register(&db.store, &["q"]).await;
            let (mut version, mut epochs, mut ended, mut outcome) = (0, vec![Epoch(0)], None, None::<String>);
            let mut claimed = None;
            for step in 0..40 {
                match rng.random_range(0..8) {
                    0 if claimed.is_none() && ended.is_none() => {
                        claimed = claim(&db.store, worker, 1).await.pop().map(|job| job.epoch);
                        epochs.extend(claimed);
                    }
                    1 => {
                        if let Some(epoch) = claimed.take() {
                            let end = match rng.random_range(0..6) {
                                0 => End::Finish(None),
                                1 => End::Cancel,
                                _ => End::Release,
                            };
                            assert_eq!(settle(&db.store, worker, id, epoch, end).await, SettleStatus::Applied);
                        }
                    }
                    2 => {
                        let unknown =
                            db.store.signal(TenantId(77), id, change_at(epochs[epochs.len() - 1], None)).await;
                        assert_eq!(unknown.expect("answers"), Signaled::NotFound);
                        assert!(matches!(
                            db.store.signal_source(TenantId(77), id).await.expect("answers"),
                            SignalRead::NotFound
                        ));
                    }
                    _ => {
                        let epoch = epochs[rng.random_range(0..epochs.len())];
                        let outcome_json = format!("{{\"step\":{step}}}");
                        let change = SignalChange {
                            summary: Some(format!("step {step}")),
                            last_known_outcome: rng.random_bool(0.3).then(|| outcome_json.clone()),
                            ..change_at(epoch, None)
                        };
                        let sets_outcome = change.last_known_outcome.is_some();
                        let applied = db.store.signal(T, id, change).await.expect("answers") == Signaled::Applied;
                        assert_eq!(applied, claimed == Some(epoch), "only the current claim may signal");
                        if applied && sets_outcome {
                            outcome = Some(outcome_json);
                        }
                    }
                }
                let now = source(&db.store, id).await;
                assert!(now.job.version >= version, "the version only grows");
                version = now.job.version;
                assert_eq!(
                    now.reported.and_then(|reported| reported.last_known_outcome),
                    outcome,
                    "the outcome stays until it is replaced"
                );
                if let Some(state) = ended {
                    assert_eq!(now.job.state, state, "an end is final");
                } else if now.job.state.is_terminal() {
                    ended = Some(now.job.state);
                }
            }
            if ended.is_none() {
                db.store.cancel(T, id, "test".into()).await.expect("cancels");
            }
        }
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement S1.
#[tokio::test]
async fn a_signal_includes_previous_jobs_of_the_same_kind_and_key() {
    on_both(async |db| {
        let worker = register(&db.store, &["q"]).await;
        let by_subject = || with(|extras| extras.subject = Some(label("m-7")));
        let by_key = || with(|extras| extras.unique = Some(Unique { key: "nginx".into(), for_s: None }));
        for (make, by) in [(&by_subject as &dyn Fn() -> NewJob, "subject"), (&by_key, "key")] {
            let first = push(&db.store, make()).await;
            let claimed = claim_one(&db.store, worker).await;
            let error = domain::JobError { retryable: false, ..boom() };
            settle(&db.store, worker, first, claimed.epoch, End::Fail(error)).await;
            let other_kind = push(&db.store, NewJob { kind: name("other"), ..make() }).await;
            let claimed = claim_one(&db.store, worker).await;
            assert_eq!(claimed.id, other_kind);
            finish(&db.store, worker, &claimed).await;
            let second = push(&db.store, make()).await;
            let source = source(&db.store, second).await;
            assert_eq!(source.previous_by, Some(by));
            let previous: Vec<_> =
                source.previous.iter().map(|job| (job.id, job.state, job.error_code.clone())).collect();
            assert_eq!(previous, [(first, JobState::Failed, Some("boom".into()))]);
            db.store.cancel(T, second, "test".into()).await.expect("cancels");
        }
    })
    .await;
}

/// Requirement S1.
#[tokio::test]
async fn a_signal_does_not_carry_over_to_the_next_attempt() {
    on_both(async |db| {
        let id = push(&db.store, job("q")).await;
        let worker = register(&db.store, &["q"]).await;
        let first = claim_one(&db.store, worker).await.epoch;
        let change =
            SignalChange { summary: Some("almost".into()), payload: Some("1".into()), ..change_at(first, None) };
        db.store.signal(T, id, change).await.expect("signals");
        settle(&db.store, worker, id, first, End::Release).await;
        let second = claim_one(&db.store, worker).await.epoch;
        db.store.signal(T, id, SignalChange { eta_s: Some(1.0), ..change_at(second, None) }).await.expect("signals");
        let reported = reported_of(&db.store, id).await.expect("is there");
        assert_eq!((reported.epoch, reported.summary, reported.payload.as_deref()), (second, None, None));
    })
    .await;
}

/// Requirement S1.
#[tokio::test]
async fn the_queue_snapshot_is_cached_and_invalidated_by_queue_changes() {
    on_both(async |db| {
        push(&db.store, job("q")).await;
        let read_snapshot = async || db.store.queue_snapshot(T, &name("q")).await.expect("reads");
        assert_eq!(read_snapshot().await.1, CacheStatus::Miss);
        // A busy machine may take longer than the cache's lifetime of one second between two reads.
        let mut second = read_snapshot().await;
        for _ in 0..10 {
            if second.1 == CacheStatus::Hit {
                break;
            }
            second = read_snapshot().await;
        }
        let (snapshot, freshness) = second;
        assert_eq!((snapshot.order.scanned(), snapshot.workers.len(), freshness), (1, 0, CacheStatus::Hit));
        db.store.pause_queue(T, name("q"), "me".into(), Some("tea".into())).await.expect("pauses");
        assert_eq!(read_snapshot().await.0.paused.as_deref(), Some("tea"));
        db.store.resume_queue(T, name("q"), "me".into()).await.expect("resumes");
        let worker = register(&db.store, &["q"]).await;
        claim_one(&db.store, worker).await;
        let (snapshot, _) = read_snapshot().await;
        assert_eq!((snapshot.order.scanned(), snapshot.running.len(), snapshot.workers[0].claims), (0, 1, 1));
    })
    .await;
}

/// Requirement S1.
#[tokio::test]
async fn signal_listings_have_pages_without_gaps_or_repeats() {
    on_both(async |db| {
        let in_run = |n: i64| NewJob {
            run_at: (n % 2 == 0).then(|| db.clock.now().plus_s(100)),
            ..with(|extras| extras.run = Some(label("r")))
        };
        let mut expected = Vec::new();
        for n in 0..9 {
            expected.insert(0, push(&db.store, in_run(n)).await);
        }
        push(&db.store, job("q")).await;
        let filter = JobFilter { run: Some("r".into()), ..JobFilter::default() };
        let mut seen = Vec::new();
        let mut before = None;
        loop {
            let page = db.store.list_signals(T, Some(SignalKind::Queued), filter.clone(), before, 2).await;
            let page = page.expect("lists");
            seen.extend(page.jobs.iter().map(|(job, _)| job.id));
            before = page.next;
            if before.is_none() {
                break;
            }
        }
        assert_eq!(seen, expected, "scheduled and queued jobs, newest first");
        let failed = db.store.list_signals(T, Some(SignalKind::Failed), filter, None, 2).await.expect("lists");
        assert!(failed.jobs.is_empty());
    })
    .await;
}

/// The inputs of a signal besides the job and its reported values.
fn other_inputs(source: &SignalSource) -> String {
    let SignalSource { job, backoff, previous, previous_by, has_log, .. } = source;
    format!("{:?} {backoff:?} {previous:?} {previous_by:?} {has_log}", job.parked)
}

/// Requirement S1.
#[tokio::test]
async fn the_signals_of_a_page_equal_the_signals_of_its_single_jobs() {
    on_both(async |db| {
        let store = &db.store;
        let worker = register_with_long_lease(store).await;
        let keyed = || with(|extras| extras.concurrency_key = Some(label("c")));
        let unique = || with(|extras| extras.unique = Some(Unique { key: "nginx".into(), for_s: None }));
        let once = |new: NewJob| NewJob { max_attempts: 1, ..new };
        let mut failed = Vec::new();
        for new in [once(job("q")), once(unique()), once(on("m-1", "wipe"))] {
            let id = push(store, new).await;
            let epoch = claim_one(store, worker).await.epoch;
            settle(store, worker, id, epoch, End::Fail(boom())).await;
            failed.push(id);
        }
        let no_bytes = if store.is_postgres() { "''::bytea" } else { "x''" };
        let logs = format!(
            "insert into artifacts (job, name, tenant, size, content_type, sha256, created_at)
             select id, 'log', tenant, 0, 'text/plain', {no_bytes}, finished_at from ended"
        );
        run_sql(store, &logs).await.expect("inserts the logs");
        push(store, keyed()).await;
        claim_one(store, worker).await;
        store.retry_job(T, failed[0], None, "me").await.expect("retries");
        lock_out(store, "m-2", "*", Until::Forever).await;
        for new in [keyed(), unique(), on("m-1", "wipe"), on("m-2", "wipe"), job("q")] {
            push(store, new).await;
        }
        let page = store.list_signals(T, None, JobFilter::default(), None, 50).await.expect("lists");
        let ids: Vec<JobId> = page.jobs.iter().map(|(job, _)| job.id).collect();
        assert_eq!(ids.len(), 10);
        let sources = store.signal_sources(T, page.jobs).await.expect("reads");
        assert_eq!(sources.iter().map(|source| source.job.id).collect::<Vec<_>>(), ids, "in page order");
        for of_page in &sources {
            assert_eq!(other_inputs(of_page), other_inputs(&source(store, of_page.job.id).await));
        }
        let count = |is: fn(&SignalSource) -> bool| sources.iter().filter(|source| is(source)).count();
        assert!(count(|source| source.job.parked.is_some()) >= 2, "one job waits for the key and one for m-2");
        assert!(count(|source| source.backoff.is_some()) >= 1);
        assert_eq!(count(|source| source.has_log), 3);
        for by in ["subject", "key", "parent"] {
            let has = |source: &&SignalSource| source.previous_by == Some(by) && !source.previous.is_empty();
            assert_eq!(sources.iter().filter(has).count(), 1, "by {by}");
        }
    })
    .await;
}

/// Receives the notifications of the channel `windlass_signal` until dropped.
struct Listener {
    notifications: mpsc::Receiver<String>,
    _client: tokio_postgres::Client,
    _driver: JoinSet<()>,
}

impl Listener {
    async fn start(url: &DatabaseUrl) -> Self {
        let DatabaseUrl::Postgres(url) = url else { panic!("PostgreSQL only") };
        let (client, mut connection) =
            tokio_postgres::connect(url, tokio_postgres::NoTls).await.expect("the server answers");
        let (sender, notifications) = mpsc::channel(16);
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            while let Some(Ok(message)) = std::future::poll_fn(|context| connection.poll_message(context)).await {
                if let AsyncMessage::Notification(notification) = message {
                    sender.send(notification.payload().to_owned()).await.expect("the receiver is open");
                }
            }
        });
        client.batch_execute("listen windlass_signal").await.expect("listens");
        Self { notifications, _client: client, _driver: driver }
    }

    async fn next(&mut self) -> String {
        let next = tokio::time::timeout(Duration::from_secs(60), self.notifications.recv()).await;
        next.expect("a notification within 60 s").expect("the connection lives")
    }
}

/// Requirement S3.
#[tokio::test]
async fn upsert_signal_notifies_exactly_when_its_transaction_commits() {
    on_postgres(async |db| {
        let psql = psql(&db.admin).await;
        let mut listener = Listener::start(&db.admin).await;
        let id = push(&db.store, job("q")).await;
        let change_at = |kind: &str| format!("select windlass.upsert_signal('{id}', '{kind}', phase => 'fetch')");
        let run = async |text: String| psql.client.batch_execute(&text).await.expect("runs");
        run(format!("begin; {}; rollback", change_at("blocked"))).await;
        run(format!("begin; {}; commit", change_at("queued"))).await;
        run("notify windlass_signal, 'the last'".into()).await;
        let notified: serde_json::Value = serde_json::from_str(&listener.next().await).expect("JSON");
        let expected = serde_json::json!({"job_id": id.uuid(), "tenant_id": T.0, "kind": "queued", "phase": "fetch"});
        assert_eq!(notified, expected, "a rolled back signal is not notified");
        assert_eq!(listener.next().await, "the last", "each commit notifies once");
    })
    .await;
}

/// Requirement S2.
#[tokio::test]
async fn upsert_signal_updates_a_signal_in_the_callers_transaction() {
    on_postgres(async |db| {
        let psql = psql(&db.admin).await;
        let id = push(&db.store, job("q")).await;
        let before = get(&db.store, id).await.version;
        let change_at = async |arguments: &str| {
            let text = format!("select windlass.upsert_signal('{id}', {arguments})");
            psql.client.query_one(&text, &[]).await.map(|row| row.get::<_, i64>(0))
        };
        let version = change_at("'blocked', summary => 'no disk', last_known_outcome => '{\"ok\": true}'")
            .await
            .expect("signals");
        assert_eq!(version, before + 1);
        let reported = reported_of(&db.store, id).await.expect("is there");
        assert_eq!((reported.kind, reported.summary.as_deref()), (Some(SignalKind::Blocked), Some("no disk")));
        change_at("kind => 'failed', phase => 'fetch', next_actions => '[{\"label\": \"a\", \"href\": \"/b\"}]'")
            .await
            .expect("signals");
        change_at("kind => 'queued', phase => 'report', summary => 'waiting happily', eta_seconds => 5")
            .await
            .expect("signals");
        let reported = reported_of(&db.store, id).await.expect("is there");
        assert_eq!(reported.kind, Some(SignalKind::Failed), "a final kind is not replaced");
        assert_eq!((reported.summary.as_deref(), reported.eta_s), (Some("no disk"), None), "nor are its values");
        assert_eq!(reported.last_known_outcome.as_deref(), Some("{\"ok\": true}"), "an omitted field stays");
        assert_eq!(get(&db.store, id).await.phase.as_deref(), Some("fetch"));
        assert!(reported.next_actions.is_some());
        change_at("kind => 'failed'").await.expect("signals");
        assert_eq!(reported_of(&db.store, id).await.expect("is there").next_actions, None, "null replaces them");

        for bad in [
            "'mended'",
            "'queued', phase => 'a b'",
            "'queued', phase => 'undeclared'",
            "'queued', eta_seconds => -1",
            "'queued', next_actions => '[{\"label\": \"a\", \"href\": \"javascript:x\"}]'",
            "'queued', next_actions => '{}'",
        ] {
            let refused = change_at(bad).await.expect_err("refused");
            assert_eq!(refused.code().map(|code| code.code()), Some("22023"), "{bad}");
        }
        let unknown = "select windlass.upsert_signal('01890a5d-ac96-774b-bcce-b302099a8057', 'queued')";
        let missing = psql.client.query_one(unknown, &[]).await.expect_err("refused");
        assert_eq!(missing.code().map(|code| code.code()), Some("P0002"));
        let others = push_for(&db.store, TenantId(1)).await;
        let text = format!("select windlass.upsert_signal('{others}', 'queued')");
        assert!(psql.client.query_one(&text, &[]).await.is_err(), "another tenant's job is not found");
    })
    .await;
}

async fn push_for(store: &Store, tenant: TenantId) -> JobId {
    match store.enqueue(tenant, vec![job("q")], None).await.expect("enqueues") {
        store::queue::enqueue::EnqueueReply::Accepted(jobs) => jobs[0].id,
        other => panic!("{other:?}"),
    }
}

/// Requirement S2.
#[tokio::test]
async fn a_kind_from_sql_ends_with_its_claim_or_wait() {
    on_postgres(async |db| {
        let psql = psql(&db.admin).await;
        let id = push(&db.store, job("q")).await;
        let upsert = async |kind: &str| {
            let text = format!("select windlass.upsert_signal('{id}', '{kind}', summary => 'said')");
            psql.client.batch_execute(&text).await.expect("signals");
        };
        let kind = async || {
            let text = format!("select kind, summary from windlass.first_signal_snapshots where job_id = '{id}'");
            let row = psql.client.query_one(&text, &[]).await.expect("reads");
            format!("{} {}", row.get::<_, &str>(0), row.get::<_, &str>(1))
        };
        upsert("blocked").await;
        assert_eq!(kind().await, "blocked said");
        let worker = register(&db.store, &["q"]).await;
        let claimed = claim_one(&db.store, worker).await;
        assert_eq!(kind().await, "started Working.");
        upsert("succeeded").await;
        assert_eq!(kind().await, "succeeded said");
        settle(&db.store, worker, id, claimed.epoch, End::Fail(boom())).await;
        assert_eq!(kind().await.split(' ').next(), Some("queued"), "the attempt failed");
        upsert("unavailable").await;
        assert_eq!(kind().await, "unavailable said", "a final kind of an earlier claim does not stay");
    })
    .await;
}

/// Requirement S2.
#[tokio::test]
async fn a_worker_reports_blocked_and_leaves_it_again() {
    on_both(async |db| {
        let id = push(&db.store, job("q")).await;
        let worker = register(&db.store, &["q"]).await;
        let epoch = claim_one(&db.store, worker).await.epoch;
        let report = async |change: SignalChange| {
            assert_eq!(
                db.store.signal(T, id, SignalChange { epoch, ..change }).await.expect("signals"),
                Signaled::Applied
            );
            reported_of(&db.store, id).await.and_then(|reported| reported.kind)
        };
        let blocked = || SignalChange { kind: Some(SignalKind::Blocked), ..SignalChange::default() };
        assert_eq!(report(blocked()).await, Some(SignalKind::Blocked));
        assert_eq!(report(SignalChange { progress: Some(0.5), ..SignalChange::default() }).await, None);
        assert_eq!(
            report(SignalChange { summary: Some("waits".into()), ..blocked() }).await,
            Some(SignalKind::Blocked)
        );
        assert_eq!(report(SignalChange { summary: Some("goes on".into()), ..SignalChange::default() }).await, None);
    })
    .await;
}
