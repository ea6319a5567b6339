use std::time::Duration;

use domain::{Epoch, JobId, JobState, QueueSettings, Refusal, SignalKind, TenantId};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use store::backoffs::by_hand::Until;
use store::jobs::enqueue::{Extras, NewJob, Unique};
use store::jobs::list::JobFilter;
use store::jobs::settle::{End, Status};
use store::signals::read::{SignalRead, SignalSource};
use store::signals::refine::{SignalChange, Signaled, StoredSignal};
use store::{DatabaseUrl, Freshness, Store};
use testkit::{job, label, name, on_both, on_postgres};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_postgres::AsyncMessage;

use crate::subjects::{lock_out, on};
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
        assert!(said(&db.store, id).await.is_none());
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
        let stored = said(&db.store, id).await.expect("is there");
        assert_eq!(stored.summary.as_deref(), Some("unpacking"));
        assert_eq!(stored.last_known_outcome.as_deref(), Some(r#"{"state":"failed"}"#));
        assert!(get(&db.store, id).await.version > before);
    })
    .await;
}

#[tokio::test]
async fn s1_a_phase_is_built_in_or_declared_by_the_queue() {
    on_both(async |db| {
        let worker = register(&db.store, &["q"]).await;
        let id = push(&db.store, job("q")).await;
        let epoch = claim_one(&db.store, worker).await.epoch;
        let say = async |phase: &str| {
            let change = SignalChange { epoch, phase: Some(phase.into()), ..SignalChange::default() };
            db.store.signal(T, id, change).await.expect("answers")
        };
        assert_eq!(say("pull").await, Signaled::UnknownPhase);
        assert_eq!(say("restore").await, Signaled::Applied);
        let settings = QueueSettings { phases: vec![name("pull")], ..QueueSettings::default() };
        db.store.put_queue(T, name("q"), settings, "me".into()).await.expect("puts");
        assert_eq!(say("pull").await, Signaled::Applied);
        assert_eq!(get(&db.store, id).await.phase.as_deref(), Some("pull"));
        assert_eq!(say("push").await, Signaled::UnknownPhase);
        assert_eq!(get(&db.store, id).await.phase.as_deref(), Some("pull"), "what is refused changes nothing");
    })
    .await;
}

async fn source(store: &Store, job: JobId) -> SignalSource {
    match store.signal_source(T, job).await.expect("reads") {
        SignalRead::Found(source) => *source,
        _ => panic!("the job has a signal"),
    }
}

async fn said(store: &Store, job: JobId) -> Option<StoredSignal> {
    source(store, job).await.said
}

fn with(change: impl FnOnce(&mut Extras)) -> NewJob {
    let mut extras = Extras::default();
    change(&mut extras);
    NewJob { extras: Some(Box::new(extras)), ..job("q") }
}

#[tokio::test]
async fn s2_late_and_doubled_updates_in_any_order_never_regress_nor_cross_tenants() {
    on_both(async |db| {
        for seed in 0..12 {
            let mut dice = StdRng::seed_from_u64(seed);
            let id = push(&db.store, job("q")).await;
            let worker = register(&db.store, &["q"]).await;
            let (mut version, mut epochs, mut ended, mut outcome) = (0, vec![Epoch(0)], None, None::<String>);
            let mut claimed = None;
            for step in 0..40 {
                match dice.random_range(0..8) {
                    0 if claimed.is_none() && ended.is_none() => {
                        claimed = claim(&db.store, worker, 1).await.pop().map(|job| job.epoch);
                        epochs.extend(claimed);
                    }
                    1 => {
                        if let Some(epoch) = claimed.take() {
                            let end = match dice.random_range(0..6) {
                                0 => End::Finish(None),
                                1 => End::Cancel,
                                _ => End::Release,
                            };
                            assert_eq!(settle(&db.store, worker, id, epoch, end).await, Status::Applied);
                        }
                    }
                    2 => {
                        let stranger = db.store.signal(TenantId(77), id, say(epochs[epochs.len() - 1], None)).await;
                        assert_eq!(stranger.expect("answers"), Signaled::NotFound);
                        assert!(matches!(
                            db.store.signal_source(TenantId(77), id).await.expect("answers"),
                            SignalRead::NotFound
                        ));
                    }
                    _ => {
                        let epoch = epochs[dice.random_range(0..epochs.len())];
                        let word = format!("{{\"step\":{step}}}");
                        let change = SignalChange {
                            summary: Some(format!("step {step}")),
                            last_known_outcome: dice.random_bool(0.3).then(|| word.clone()),
                            ..say(epoch, None)
                        };
                        let named = change.last_known_outcome.is_some();
                        let applied = db.store.signal(T, id, change).await.expect("answers") == Signaled::Applied;
                        assert_eq!(applied, claimed == Some(epoch), "only the claim that holds it may speak");
                        if applied && named {
                            outcome = Some(word);
                        }
                    }
                }
                let now = source(&db.store, id).await;
                assert!(now.job.version >= version, "the version only grows");
                version = now.job.version;
                assert_eq!(
                    now.said.and_then(|said| said.last_known_outcome),
                    outcome,
                    "it stays until another is named"
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
        sound(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn s1_the_previous_jobs_of_the_same_kind_and_key_are_known() {
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
            let told: Vec<_> = source.previous.iter().map(|job| (job.id, job.state, job.error_code.clone())).collect();
            assert_eq!(told, [(first, JobState::Failed, Some("boom".into()))]);
            db.store.cancel(T, second, "test".into()).await.expect("cancels");
        }
    })
    .await;
}

#[tokio::test]
async fn s1_what_a_worker_said_does_not_speak_for_the_next_attempt() {
    on_both(async |db| {
        let id = push(&db.store, job("q")).await;
        let worker = register(&db.store, &["q"]).await;
        let first = claim_one(&db.store, worker).await.epoch;
        let change = SignalChange { summary: Some("almost".into()), payload: Some("1".into()), ..say(first, None) };
        db.store.signal(T, id, change).await.expect("signals");
        settle(&db.store, worker, id, first, End::Release).await;
        let second = claim_one(&db.store, worker).await.epoch;
        db.store.signal(T, id, SignalChange { eta_s: Some(1.0), ..say(second, None) }).await.expect("signals");
        let said = said(&db.store, id).await.expect("is there");
        assert_eq!((said.epoch, said.summary, said.payload.as_deref()), (second, None, None));
    })
    .await;
}

#[tokio::test]
async fn s1_surroundings_are_kept_for_a_second_and_forgotten_when_the_queue_is_told_something() {
    on_both(async |db| {
        push(&db.store, job("q")).await;
        let look = async || db.store.surroundings(T, &name("q")).await.expect("reads");
        assert_eq!(look().await.1, Freshness::ReadNow);
        // A busy machine may take longer than that second from one look to the next.
        let mut second = look().await;
        for _ in 0..10 {
            if second.1 == Freshness::Kept {
                break;
            }
            second = look().await;
        }
        let (around, freshness) = second;
        assert_eq!((around.line.seen(), around.workers.len(), freshness), (1, 0, Freshness::Kept));
        db.store.pause_queue(T, name("q"), "me".into(), Some("tea".into())).await.expect("pauses");
        assert_eq!(look().await.0.paused.as_deref(), Some("tea"));
        db.store.resume_queue(T, name("q"), "me".into()).await.expect("resumes");
        let worker = register(&db.store, &["q"]).await;
        claim_one(&db.store, worker).await;
        let (around, _) = look().await;
        assert_eq!((around.line.seen(), around.running.len(), around.workers[0].claims), (0, 1, 1));
    })
    .await;
}

#[tokio::test]
async fn s1_listings_by_kind_and_run_are_pages_without_gaps_or_repeats() {
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

/// What a signal is told from, beside the job and what was said of it.
fn beside(source: &SignalSource) -> String {
    let SignalSource { job, backoff, previous, previous_by, has_log, .. } = source;
    format!("{:?} {backoff:?} {previous:?} {previous_by:?} {has_log}", job.parked)
}

#[tokio::test]
async fn s1_the_signals_of_a_page_are_told_from_what_each_job_alone_is_told_from() {
    on_both(async |db| {
        let store = &db.store;
        let worker = patient(store).await;
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
        run_sql(store, &logs).await.expect("each has a log");
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
        let told = store.signal_sources(T, page.jobs).await.expect("reads");
        assert_eq!(told.iter().map(|source| source.job.id).collect::<Vec<_>>(), ids, "in its order");
        for of_page in &told {
            assert_eq!(beside(of_page), beside(&source(store, of_page.job.id).await));
        }
        let count = |is: fn(&SignalSource) -> bool| told.iter().filter(|source| is(source)).count();
        assert!(count(|source| source.job.parked.is_some()) >= 2, "the key is taken, and m-2 is locked out");
        assert!(count(|source| source.backoff.is_some()) >= 1);
        assert_eq!(count(|source| source.has_log), 3);
        for by in ["subject", "key", "parent"] {
            let has = |source: &&SignalSource| source.previous_by == Some(by) && !source.previous.is_empty();
            assert_eq!(told.iter().filter(has).count(), 1, "by {by}");
        }
    })
    .await;
}

/// Hears what is notified on the channel of signals, until it is dropped.
struct Listener {
    heard: mpsc::Receiver<String>,
    _client: tokio_postgres::Client,
    _driver: JoinSet<()>,
}

impl Listener {
    async fn start(url: &DatabaseUrl) -> Self {
        let DatabaseUrl::Postgres(url) = url else { panic!("PostgreSQL only") };
        let (client, mut connection) =
            tokio_postgres::connect(url, tokio_postgres::NoTls).await.expect("the server answers");
        let (tell, heard) = mpsc::channel(16);
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            while let Some(Ok(message)) = std::future::poll_fn(|context| connection.poll_message(context)).await {
                if let AsyncMessage::Notification(said) = message {
                    tell.send(said.payload().to_owned()).await.expect("somebody listens");
                }
            }
        });
        client.batch_execute("listen windlass_signal").await.expect("listens");
        Self { heard, _client: client, _driver: driver }
    }

    async fn next(&mut self) -> String {
        let next = tokio::time::timeout(Duration::from_secs(60), self.heard.recv()).await;
        next.expect("it is heard in time").expect("the connection lives")
    }
}

#[tokio::test]
async fn s3_upsert_signal_notifies_once_its_transaction_holds_and_never_otherwise() {
    on_postgres(async |db| {
        let psql = psql(&db.admin).await;
        let mut listener = Listener::start(&db.admin).await;
        let id = push(&db.store, job("q")).await;
        let say = |kind: &str| format!("select windlass.upsert_signal('{id}', '{kind}', phase => 'fetch')");
        let run = async |text: String| psql.client.batch_execute(&text).await.expect("runs");
        run(format!("begin; {}; rollback", say("blocked"))).await;
        run(format!("begin; {}; commit", say("queued"))).await;
        run("notify windlass_signal, 'the last'".into()).await;
        let told: serde_json::Value = serde_json::from_str(&listener.next().await).expect("JSON");
        let expected = serde_json::json!({"job_id": id.uuid(), "tenant_id": T.0, "kind": "queued", "phase": "fetch"});
        assert_eq!(told, expected, "what was rolled back was never said");
        assert_eq!(listener.next().await, "the last", "and once is enough");
    })
    .await;
}

#[tokio::test]
async fn s2_upsert_signal_says_something_in_anyones_transaction_and_notifies_when_it_commits() {
    on_postgres(async |db| {
        let psql = psql(&db.admin).await;
        let id = push(&db.store, job("q")).await;
        let before = get(&db.store, id).await.version;
        let say = async |arguments: &str| {
            let text = format!("select windlass.upsert_signal('{id}', {arguments})");
            psql.client.query_one(&text, &[]).await.map(|row| row.get::<_, i64>(0))
        };
        let version =
            say("'blocked', summary => 'no disk', last_known_outcome => '{\"ok\": true}'").await.expect("says");
        assert_eq!(version, before + 1);
        let said_now = said(&db.store, id).await.expect("is there");
        assert_eq!((said_now.kind, said_now.summary.as_deref()), (Some(SignalKind::Blocked), Some("no disk")));
        say("kind => 'failed', phase => 'fetch', next_actions => '[{\"label\": \"a\", \"href\": \"/b\"}]'")
            .await
            .expect("says");
        say("kind => 'queued', phase => 'report', summary => 'waiting happily', eta_seconds => 5").await.expect("says");
        let said_now = said(&db.store, id).await.expect("is there");
        assert_eq!(said_now.kind, Some(SignalKind::Failed), "an end that was said is not taken back");
        assert_eq!((said_now.summary.as_deref(), said_now.eta_s), (Some("no disk"), None), "nor talked over");
        assert_eq!(said_now.last_known_outcome.as_deref(), Some("{\"ok\": true}"), "it stays");
        assert_eq!(get(&db.store, id).await.phase.as_deref(), Some("fetch"));

        for bad in [
            "'mended'",
            "'queued', phase => 'a b'",
            "'queued', eta_seconds => -1",
            "'queued', next_actions => '[{\"label\": \"a\", \"href\": \"javascript:x\"}]'",
            "'queued', next_actions => '{}'",
        ] {
            let refused = say(bad).await.expect_err("refused");
            assert_eq!(refused.code().map(|code| code.code()), Some("22023"), "{bad}");
        }
        let nobody = "select windlass.upsert_signal('01890a5d-ac96-774b-bcce-b302099a8057', 'queued')";
        let missing = psql.client.query_one(nobody, &[]).await.expect_err("refused");
        assert_eq!(missing.code().map(|code| code.code()), Some("P0002"));
        let others = push_for(&db.store, TenantId(1)).await;
        let text = format!("select windlass.upsert_signal('{others}', 'queued')");
        assert!(psql.client.query_one(&text, &[]).await.is_err(), "another tenant's job is as if there were none");
    })
    .await;
}

async fn push_for(store: &Store, tenant: TenantId) -> JobId {
    match store.enqueue(tenant, vec![job("q")], None).await.expect("enqueues") {
        store::jobs::enqueue::EnqueueReply::Accepted(jobs) => jobs[0].id,
        other => panic!("{other:?}"),
    }
}
