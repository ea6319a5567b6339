//! Deliveries to receivers that hang, fail, redirect, close early or accept slowly, on both databases.

use domain::address::{Allowed, Private};
use domain::limits::{CIRCUIT_FAILURES, DELIVERY_LEASE_MARGIN_MS, ENDPOINT_CONCURRENCY, FAILED_DELIVERY_RETENTION_S};
use domain::{DeliveryId, JobId, Resolution, RetryPolicy, TenantId};
use engine::outbound::sign;
use engine::{Engine, EngineOptions};
use serde_json::Value;
use store::deliveries::list::{DeliveryFilter, WholeDelivery};
use store::deliveries::{DeliveryState, NewDelivery, insert};
use store::jobs::claim::{Claimed, ClaimedJob};
use store::jobs::enqueue::{EnqueueReply, Extras, NewJob};
use store::jobs::settle::{End, Outcome};
use store::tx::{Operation, Tx};
use store::workers::register::NewWorker;
use store::{Caller, Store, StoreError};
use testkit::receiver::{Manner, Receiver, wait_until};
use testkit::{Database, job, name, on_both};

const T: TenantId = TenantId::DEFAULT;
/// No machine stalls for so long: a request that timed out, or whose lease has passed, would be sent again.
const TIMEOUT_MS: i64 = 3_600_000;
pub(crate) const LEASE_MS: i64 = TIMEOUT_MS + DELIVERY_LEASE_MARGIN_MS;

pub(crate) async fn engine(db: &Database) -> Engine {
    node(db.store.clone()).await
}

pub(crate) async fn node(store: Store) -> Engine {
    let allowed = Allowed { private: Private::Allowed, networks: Vec::new() };
    Engine::start(store, EngineOptions { allowed, ..EngineOptions::default() }).await.expect("it starts")
}

/// Owes requests, as a transaction of the program would.
struct Owe(Vec<NewDelivery>);

impl Operation for Owe {
    type Output = Vec<DeliveryId>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<DeliveryId>, StoreError> {
        insert(tx, self.0.clone()).await
    }
}

pub(crate) fn to(url: &str) -> NewDelivery {
    let (source, op, timeout_ms) = ("test".into(), "sent".into(), TIMEOUT_MS);
    NewDelivery { source, op, timeout_ms, ..NewDelivery::post(T, url.into(), "{}".into()) }
}

pub(crate) async fn owe(store: &Store, deliveries: Vec<NewDelivery>) -> Vec<DeliveryId> {
    let ids = store.write(Owe(deliveries)).await.expect("writes");
    store.hints().deliveries_changed();
    ids
}

pub(crate) async fn look(store: &Store, id: DeliveryId) -> WholeDelivery {
    store.delivery(T, id).await.expect("reads").expect("it is there")
}

pub(crate) async fn in_state(store: &Store, id: DeliveryId, state: DeliveryState) -> WholeDelivery {
    let what = format!("{id} is {}", state.as_str());
    wait_until(&what, async || look(store, id).await.delivery.state == state).await;
    look(store, id).await
}

async fn attempted(store: &Store, id: DeliveryId, times: usize) -> WholeDelivery {
    wait_until(&format!("{times} attempts"), async || look(store, id).await.attempts.len() >= times).await;
    look(store, id).await
}

async fn run_job(store: &Store, extras: Extras, queue: &str, end: End) -> JobId {
    let new = NewJob { extras: Some(Box::new(extras)), max_attempts: 1, ..job(queue) };
    let id = match store.enqueue(T, vec![new], None).await.expect("enqueues") {
        EnqueueReply::Accepted(jobs) => jobs[0].id,
        EnqueueReply::KeyReused => panic!("no key"),
    };
    let claimed = claim(store, queue).await;
    assert_eq!(claimed.1.id, id);
    let outcome = Outcome { job: id, epoch: claimed.1.epoch, end };
    store.settle(T, claimed.0, vec![outcome]).await.expect("settles");
    id
}

async fn claim(store: &Store, queue: &str) -> (domain::WorkerId, ClaimedJob) {
    let worker =
        NewWorker { name: "w".into(), queues: vec![name(queue)], kinds: None, affinities: None, lease_ms: 3_600_000 };
    let worker = store.register_worker(T, worker).await.expect("registers");
    match store.claim(T, worker, 1, None).await.expect("claims") {
        Claimed::Jobs { mut jobs, .. } => (worker, jobs.remove(0)),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn q10_each_change_of_a_job_arrives_in_order_signed_by_every_secret() {
    on_both(async |db| {
        let engine = engine(&db).await;
        let receiver = Receiver::start(Manner::Answer(200)).await;
        let secrets = ["whsec_b2xkIHNlY3JldA==".to_owned(), "whsec_bmV3IHNlY3JldA==".to_owned()];
        let webhook = serde_json::json!({"url": receiver.url(), "secret": secrets[0], "secrets": [secrets[1]]});
        let extras = Extras { webhook: Some(webhook.to_string()), ..Extras::default() };
        let id = run_job(&db.store, extras, "q", End::Finish(Some(r#"{"n": 1.50}"#.into()))).await;
        let seen = receiver.saw(2).await;
        let types: Vec<Value> = seen.iter().map(|seen| serde_json::from_str(&seen.body).expect("JSON")).collect();
        assert_eq!((&types[0]["type"], &types[1]["type"]), (&"job.working".into(), &"job.succeeded".into()));
        let data = &types[1]["data"];
        assert_eq!((&data["job_id"], &data["previous_state"]), (&id.to_string().into(), &"working".into()));
        assert_eq!((&data["state"], &data["attempt"], &data["kind"]), (&"succeeded".into(), &1.into(), &"k".into()));
        assert!(data["artifacts"].as_array().is_some_and(Vec::is_empty) && data["error"].is_null());
        assert!(seen[1].body.contains(r#""result":{"n": 1.50}"#), "the result as it is: {}", seen[1].body);
        for seen in &seen {
            let id = seen.header("webhook-id").expect("an id");
            let time: i64 = seen.header("webhook-timestamp").expect("a time").parse().expect("seconds");
            let expected = sign::signature(&secrets, id, time, &seen.body);
            assert_eq!(seen.header("webhook-signature"), expected.as_deref());
            assert_eq!(expected.map(|signed| signed.split(' ').count()), Some(2));
        }
        engine.stop().await;
    })
    .await;
}

#[tokio::test]
async fn q10_a_large_result_goes_as_a_link() {
    on_both(async |db| {
        let engine = engine(&db).await;
        let receiver = Receiver::start(Manner::Answer(200)).await;
        let webhook = Some(format!(r#"{{"url":"{}"}}"#, receiver.url()));
        let large = format!("\"{}\"", "x".repeat(100 << 10));
        let extras = Extras { webhook, ..Extras::default() };
        let id = run_job(&db.store, extras, "q", End::Finish(Some(large.into()))).await;
        let seen = receiver.saw(2).await;
        let body: Value = serde_json::from_str(&seen[1].body).expect("JSON");
        assert_eq!(body["data"]["result_link"], format!("/api/v1/jobs/{id}"));
        assert!(body["data"]["result"].is_null() && seen[1].body.len() < 2_000);
        assert_eq!(seen[1].header("webhook-signature"), None, "without a secret nothing is signed");
        engine.stop().await;
    })
    .await;
}

#[tokio::test]
async fn q10_a_queues_webhook_hears_of_jobs_that_have_none_and_of_every_change() {
    on_both(async |db| {
        let engine = engine(&db).await;
        let (of_queue, of_job) =
            (Receiver::start(Manner::Answer(200)).await, Receiver::start(Manner::Answer(200)).await);
        let webhook = domain::Webhook { url: of_queue.url(), secrets: vec!["whsec_YQ==".into()] };
        let settings = domain::QueueSettings { webhook: Some(webhook), ..Default::default() };
        db.store.put_queue(T, name("q"), settings, "me".into()).await.expect("sets");
        let due = db.clock.now().plus_s(3_600);
        let later = NewJob { run_at: Some(due), ..job("q") };
        let canceled = db.store.enqueue(T, vec![later.clone()], None).await.expect("enqueues");
        let EnqueueReply::Accepted(canceled) = canceled else { panic!("no key") };
        db.store.cancel(T, canceled[0].id, "me".into()).await.expect("cancels");
        db.store.enqueue(T, vec![later], None).await.expect("enqueues");
        // Time that passes while a request is under way takes its lease with it.
        wait_until("the first is delivered", async || {
            let filter = DeliveryFilter { state: Some(DeliveryState::Delivered), job: None };
            db.store.list_deliveries(T, filter, None, 10).await.expect("lists").len() == 1
        })
        .await;
        db.pass_ms(3_601_000).await;
        let states = |seen: &[testkit::receiver::Seen]| -> Vec<String> {
            let state = |seen: &testkit::receiver::Seen| {
                let body: Value = serde_json::from_str(&seen.body).expect("JSON");
                format!(
                    "{} {}",
                    body["data"]["previous_state"].as_str().unwrap_or("?"),
                    body["type"].as_str().unwrap_or("?")
                )
            };
            seen.iter().map(state).collect()
        };
        assert_eq!(states(&of_queue.saw(2).await), ["scheduled job.canceled", "scheduled job.queued"]);
        let (worker, claimed) = claim(&db.store, "q").await;
        let error = domain::JobError { code: "boom".into(), message: "it broke".into(), retryable: false };
        let outcome = Outcome { job: claimed.id, epoch: claimed.epoch, end: End::Fail(error) };
        db.store.settle(T, worker, vec![outcome]).await.expect("settles");
        let seen = of_queue.saw(4).await;
        assert_eq!(states(&seen[2..]), ["queued job.working", "working job.failed"]);
        assert!(seen[3].body.contains(r#""error":{"code":"boom""#), "{}", seen[3].body);
        assert!(seen.iter().all(|seen| seen.header("webhook-signature").is_some()));

        let webhook = Some(format!(r#"{{"url":"{}"}}"#, of_job.url()));
        run_job(&db.store, Extras { webhook, ..Extras::default() }, "q", End::Finish(None)).await;
        assert_eq!(states(&of_job.saw(2).await), ["queued job.working", "working job.succeeded"]);
        assert_eq!(of_queue.seen().len(), 4, "a job's own webhook comes first");
        engine.stop().await;
    })
    .await;
}

#[tokio::test]
async fn q10_failures_are_tried_again_with_growing_waits_and_every_attempt_is_told() {
    on_both(async |db| {
        let engine = engine(&db).await;
        let receiver = Receiver::start(Manner::Say(500, "out of\0order".into())).await;
        let retry = RetryPolicy::new(Some(1_000), None, Some(2.0), None).expect("valid");
        let id = owe(&db.store, vec![NewDelivery { retry, max_attempts: 4, ..to(&receiver.url()) }]).await[0];
        let first = attempted(&db.store, id, 1).await;
        assert_eq!(first.delivery.state, DeliveryState::Pending);
        let attempt = &first.attempts[0];
        assert_eq!((attempt.status, attempt.response.as_deref()), (Some(500), Some("out of\u{fffd}order")));
        assert_eq!(attempt.error.as_deref(), Some("the receiver answered 500"));
        let wait_ms = first.delivery.due_at.expect("it waits").ms_since(attempt.at);
        assert!((1_000_000..2_000_000).contains(&wait_ms), "{wait_ms}");
        db.pass_ms(1_000_500).await;
        let second = attempted(&db.store, id, 2).await;
        let wait_ms = second.delivery.due_at.expect("it waits").ms_since(second.attempts[1].at);
        assert!((2_000_000..3_000_000).contains(&wait_ms), "{wait_ms}");
        receiver.behave(Manner::CloseEarly);
        db.pass_ms(2_000_500).await;
        let third = attempted(&db.store, id, 3).await;
        assert_eq!(third.attempts[2].status, None);
        assert!(third.delivery.error.as_deref().is_some_and(|error| error.starts_with("cannot be reached")));
        receiver.behave(Manner::Answer(202));
        db.pass_ms(4_000_500).await;
        let last = in_state(&db.store, id, DeliveryState::Delivered).await;
        assert_eq!((last.delivery.status, last.delivery.error, last.attempts.len()), (Some(202), None, 4));
        let ids: Vec<_> =
            receiver.seen().iter().filter_map(|seen| seen.header("webhook-id").map(str::to_owned)).collect();
        assert!(ids.iter().all(|id| *id == ids[0]), "one message, one id: {ids:?}");
        engine.stop().await;
    })
    .await;
}

#[tokio::test]
async fn q10_out_of_attempts_it_fails_and_a_person_may_send_it_again() {
    on_both(async |db| {
        let engine = engine(&db).await;
        let receiver = Receiver::start(Manner::Answer(500)).await;
        let delivery = NewDelivery { max_attempts: 1, ..to(&receiver.url()) };
        let id = owe(&db.store, vec![delivery]).await[0];
        let failed = in_state(&db.store, id, DeliveryState::Failed).await;
        assert!(failed.delivery.ended_at.is_some() && failed.delivery.due_at.is_none());
        receiver.behave(Manner::Answer(200));
        db.store.redeliver(T, id, "me".into()).await.expect("redelivers").expect("it is there");
        let done = in_state(&db.store, id, DeliveryState::Delivered).await;
        let statuses: Vec<_> = done.attempts.iter().map(|attempt| attempt.status).collect();
        assert_eq!(statuses, [Some(500), Some(200)]);
        db.store
            .redeliver(T, id, "me".into())
            .await
            .expect("redelivers")
            .expect("what was delivered may be sent again too");
        attempted(&db.store, id, 3).await;
        let stranger = db.store.redeliver(TenantId(77), id, "me".into()).await.expect("asks");
        assert!(stranger.is_none(), "another tenant's is as good as none");
        engine.stop().await;
    })
    .await;
}

#[tokio::test]
async fn q10_what_cannot_be_delivered_ends_at_once() {
    on_both(async |db| {
        let engine = Engine::start(db.store.clone(), EngineOptions::default()).await.expect("it starts");
        let canary = Receiver::start(Manner::Answer(200)).await;
        let id = owe(&db.store, vec![to(&canary.url())]).await[0];
        let refused = in_state(&db.store, id, DeliveryState::Failed).await;
        assert!(refused.delivery.error.is_some_and(|error| error.contains("private or special")));
        assert_eq!((refused.attempts.len(), canary.connections()), (1, 0));
        engine.stop().await;
    })
    .await;
}

#[tokio::test]
async fn q10_redirects_are_not_followed_and_gone_means_never_again() {
    on_both(async |db| {
        let engine = engine(&db).await;
        let canary = Receiver::start(Manner::Answer(200)).await;
        let sly = Receiver::start(Manner::Redirect(canary.url())).await;
        let gone = Receiver::start(Manner::Answer(410)).await;
        let busy = Receiver::start(Manner::Later(7_000)).await;
        let retry = RetryPolicy::new(Some(3_600), None, None, None).expect("valid");
        let redirected = NewDelivery { retry, ..to(&sly.url()) };
        let ids = owe(&db.store, vec![redirected, to(&gone.url()), to(&busy.url())]).await;
        let redirected = attempted(&db.store, ids[0], 1).await;
        assert!(redirected.delivery.error.is_some_and(|error| error.contains("302") && error.contains("redirects")));
        assert_eq!(redirected.delivery.state, DeliveryState::Pending);
        in_state(&db.store, ids[1], DeliveryState::Failed).await;
        let told = attempted(&db.store, ids[2], 1).await;
        let wait_ms = told.delivery.due_at.expect("it waits").ms_since(told.attempts[0].at);
        assert!(wait_ms >= 7_000_000, "Retry-After is obeyed: {wait_ms}");
        assert_eq!(canary.connections(), 0);
        engine.stop().await;
    })
    .await;
}

#[tokio::test]
async fn q10_a_dead_receiver_delays_nobody_else() {
    on_both(async |db| {
        let engine = engine(&db).await;
        let hanging = Receiver::start(Manner::Hang).await;
        let deaf = Receiver::start(Manner::DoNotAccept).await;
        let dripping = Receiver::start(Manner::Drip).await;
        let well = Receiver::start(Manner::Answer(200)).await;
        let mut all = Vec::new();
        for dead in [&hanging, &deaf, &dripping] {
            all.extend((0..100).map(|_| to(&dead.url())));
        }
        owe(&db.store, all).await;
        wait_until("the dead are called", async || hanging.connections() > 0 && dripping.connections() > 0).await;
        // No request to them times out before a wait here does.
        owe(&db.store, (0..50).map(|_| to(&well.url())).collect()).await;
        well.saw(50).await;
        assert!(hanging.most_open() <= ENDPOINT_CONCURRENCY, "{} at once", hanging.most_open());
        engine.stop().await;
    })
    .await;
}

#[tokio::test]
async fn q10_after_failures_in_a_row_a_receiver_is_left_alone_until_one_try_succeeds() {
    on_both(async |db| {
        let engine = engine(&db).await;
        let receiver = Receiver::start(Manner::Answer(503)).await;
        let ids = owe(&db.store, (0..40).map(|_| to(&receiver.url())).collect()).await;
        let open = async || {
            let page = db.store.list_deliveries(T, DeliveryFilter::default(), None, 50).await.expect("lists");
            page.iter().any(|delivery| delivery.circuit_open_until.is_some())
        };
        wait_until("the circuit opens", open).await;
        let idle = async || {
            let state = Some(DeliveryState::Delivering);
            let filter = DeliveryFilter { state, job: None };
            db.store.list_deliveries(T, filter, None, 50).await.expect("lists").is_empty()
        };
        wait_until("requests under way end", idle).await;
        let called = receiver.seen().len();
        assert!(called < CIRCUIT_FAILURES as usize + 2 * ENDPOINT_CONCURRENCY, "{called} calls of 40");
        receiver.behave(Manner::Answer(200));
        // One that was tried meanwhile and failed must not open the circuit anew after the time has passed.
        wait_until("the last failure is told", idle).await;
        // The untried wait for the circuit alone, the others for their own next attempt too.
        db.pass_ms(400_000).await;
        for id in ids {
            in_state(&db.store, id, DeliveryState::Delivered).await;
        }
        assert!(!open().await);
        engine.stop().await;
    })
    .await;
}

#[tokio::test]
async fn t9_a_failed_delivery_is_kept_while_its_letter_can_be_played_again() {
    use store::dead_letters::list::DeadLetterFilter;
    use store::dead_letters::replay::{Replayed, Work};
    on_both(async |db| {
        let engine = engine(&db).await;
        let receiver = Receiver::start(Manner::Answer(500)).await;
        let new = || NewDelivery { max_attempts: 1, ..to(&receiver.url()) };
        for id in owe(&db.store, vec![new(), new()]).await {
            in_state(&db.store, id, DeliveryState::Failed).await;
        }
        let letters = db.store.list_dead_letters(T, DeadLetterFilter::default(), None, 9).await.expect("lists");
        let (open, ignored) = (&letters[0], &letters[1]);
        let ignoring = db.store.resolve_dead_letter(T, ignored.id, Resolution::Ignored, "me".into(), None);
        ignoring.await.expect("resolves");
        db.pass_ms((FAILED_DELIVERY_RETENTION_S + 60) * 1_000).await;
        db.store.prune_deliveries().await.expect("prunes");
        let of_ignored = DeliveryId::new(ignored.event.uuid());
        assert!(db.store.delivery(T, of_ignored).await.expect("reads").is_none(), "nobody plays it again");
        let replayed =
            db.store.replay_dead_letter(T, open.id, None, Caller::new("me").at_depth(7)).await.expect("replays");
        let Replayed::Made(Work::Delivery(again)) = replayed else { panic!("{replayed:?}") };
        let seen = receiver.saw(3).await;
        assert_eq!(seen[2].header("windlass-depth"), Some("7"), "a loop through a replay goes on counting");
        in_state(&db.store, again, DeliveryState::Failed).await;
        engine.stop().await;
    })
    .await;
}

#[tokio::test]
async fn t6_a_delivery_out_of_attempts_leaves_one_letter_that_can_be_played_again() {
    use store::dead_letters::list::DeadLetterFilter;
    use store::dead_letters::replay::{Replayed, Work};
    on_both(async |db| {
        let engine = engine(&db).await;
        let receiver = Receiver::start(Manner::Answer(500)).await;
        let retry = RetryPolicy::new(Some(1), None, None, None).expect("valid");
        let new = || NewDelivery { retry, max_attempts: 2, ..to(&receiver.url()) };
        let ids = owe(&db.store, vec![new(), new()]).await;
        for id in &ids {
            attempted(&db.store, *id, 1).await;
        }
        db.pass_ms(2_000).await;
        for id in &ids {
            in_state(&db.store, *id, DeliveryState::Failed).await;
        }
        let letters =
            async || db.store.list_dead_letters(T, DeadLetterFilter::default(), None, 10).await.expect("lists");
        let found = letters().await;
        assert_eq!(found.len(), 2, "one each");
        assert_eq!((found[0].source.as_str(), found[0].op.as_str(), found[0].payload.as_str()), ("test", "sent", "{}"));
        let told: Vec<_> = found[0].attempts.iter().map(|attempt| attempt.error.message.as_str()).collect();
        assert_eq!(told, ["the receiver answered 500", "the receiver answered 500"]);

        receiver.behave(Manner::Answer(200));
        let body = Some(r#"{"edited":true}"#.into());
        let replayed = db.store.replay_dead_letter(T, found[0].id, body, "me").await.expect("replays");
        let Replayed::Made(Work::Delivery(again)) = replayed else { panic!("{replayed:?}") };
        assert_eq!(in_state(&db.store, again, DeliveryState::Delivered).await.body, r#"{"edited":true}"#);
        let twice = db.store.replay_dead_letter(T, found[0].id, None, "me").await.expect("replays");
        assert_eq!(twice, Replayed::Before(Work::Delivery(again)), "two clicks replay once");
        let edited = db.store.replay_dead_letter(T, found[0].id, Some("[]".into()), "me").await.expect("answers");
        assert_eq!(edited, Replayed::Otherwise(Work::Delivery(again)), "an edit is not dropped in silence");

        let other = ids.iter().find(|id| found[1].event.uuid() == id.uuid()).expect("the letter of one of them");
        db.store.redeliver(T, *other, "me".into()).await.expect("redelivers");
        in_state(&db.store, *other, DeliveryState::Delivered).await;
        let resolved = letters().await.into_iter().filter_map(|letter| letter.resolved).collect::<Vec<_>>();
        assert_eq!(resolved.len(), 2);
        assert!(resolved.iter().all(|resolved| resolved.replayed_as.is_some() && resolved.by == "me"));
        assert_eq!(db.store.verify().await.expect("verifies").findings, []);
        engine.stop().await;
    })
    .await;
}
