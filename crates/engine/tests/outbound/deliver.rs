//! Deliveries to receivers that hang, fail, redirect, close early or accept slowly, on both databases.

use domain::address::{Allowed, Private};
use domain::limits::{CIRCUIT_FAILURES, DELIVERY_LEASE_MARGIN_MS, ENDPOINT_CONCURRENCY, FAILED_DELIVERY_RETENTION_S};
use domain::{DeliveryId, JobId, Resolution, RetryPolicy, TenantId};
use engine::outbound::sign;
use engine::{Engine, EngineOptions};
use serde_json::Value;
use store::db::tx::{Operation, Tx};
use store::queue::claim::{Claimed, ClaimedJob};
use store::queue::enqueue::{EnqueueReply, Extras, NewJob};
use store::queue::settle::{End, Outcome};
use store::queue::workers::register::NewWorker;
use store::triggers::deliveries::list::{DeliveryFilter, WholeDelivery};
use store::triggers::deliveries::{DeliveryState, NewDelivery, insert};
use store::{Caller, Store, StoreError};
use testkit::eventually::{eventually, wait_until};
use testkit::receiver::{Behavior, Receiver};
use testkit::{Database, job, name, on_both};

const T: TenantId = TenantId::DEFAULT;
/// Longer than any pause of a test machine: a request that times out or outlives its lease would be sent again.
const TIMEOUT_MS: i64 = 3_600_000;
pub(crate) const LEASE_MS: i64 = TIMEOUT_MS + DELIVERY_LEASE_MARGIN_MS;

pub(crate) async fn engine(db: &Database) -> Engine {
    node(db.store.clone()).await
}

pub(crate) async fn node(store: Store) -> Engine {
    let allowed = Allowed { private: Private::Allowed, networks: Vec::new() };
    Engine::start(store, EngineOptions { allowed, ..EngineOptions::default() }).await.expect("the engine starts")
}

/// Inserts deliveries, as a transaction of the server does.
struct InsertDeliveries(Vec<NewDelivery>);

impl Operation for InsertDeliveries {
    type Output = Vec<DeliveryId>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<DeliveryId>, StoreError> {
        insert(tx, self.0.clone()).await
    }
}

pub(crate) fn delivery_to(url: &str) -> NewDelivery {
    let (source, op, timeout_ms) = ("test".into(), "sent".into(), TIMEOUT_MS);
    NewDelivery { source, op, timeout_ms, ..NewDelivery::post(T, url.into(), "{}".into()) }
}

pub(crate) async fn insert_deliveries(store: &Store, deliveries: Vec<NewDelivery>) -> Vec<DeliveryId> {
    let ids = store.write(InsertDeliveries(deliveries)).await.expect("writes");
    store.notifier().deliveries_changed();
    ids
}

pub(crate) async fn get(store: &Store, id: DeliveryId) -> WholeDelivery {
    store.delivery(T, id).await.expect("reads").expect("the delivery exists")
}

pub(crate) async fn in_state(store: &Store, id: DeliveryId, state: DeliveryState) -> WholeDelivery {
    eventually(&format!("{id} is {}", state.as_str()), async || {
        Some(get(store, id).await).filter(|whole| whole.delivery.state == state)
    })
    .await
}

async fn attempted(store: &Store, id: DeliveryId, times: usize) -> WholeDelivery {
    eventually(&format!("{id} has {times} attempts"), async || {
        Some(get(store, id).await).filter(|whole| whole.attempts.len() >= times)
    })
    .await
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

/// Requirement Q10.
#[tokio::test]
async fn each_job_state_change_is_delivered_in_order_and_signed_by_every_secret() {
    on_both(async |db| {
        let engine = engine(&db).await;
        let receiver = Receiver::start(Behavior::Respond(200)).await;
        let secrets = ["whsec_b2xkIHNlY3JldA==".to_owned(), "whsec_bmV3IHNlY3JldA==".to_owned()];
        let webhook = serde_json::json!({"url": receiver.url(), "secret": secrets[0], "secrets": [secrets[1]]});
        let extras = Extras { webhook: Some(webhook.to_string()), ..Extras::default() };
        let id = run_job(&db.store, extras, "q", End::Finish(Some(r#"{"n": 1.50}"#.into()))).await;
        let seen = receiver.wait_for(2).await;
        let types: Vec<Value> = seen.iter().map(|seen| serde_json::from_str(&seen.body).expect("JSON")).collect();
        assert_eq!((&types[0]["type"], &types[1]["type"]), (&"job.working".into(), &"job.succeeded".into()));
        let data = &types[1]["data"];
        assert_eq!((&data["job_id"], &data["previous_state"]), (&id.to_string().into(), &"working".into()));
        assert_eq!((&data["state"], &data["attempt"], &data["kind"]), (&"succeeded".into(), &1.into(), &"k".into()));
        assert!(data["artifacts"].as_array().is_some_and(Vec::is_empty) && data["error"].is_null());
        assert!(seen[1].body.contains(r#""result":{"n": 1.50}"#), "the result is unchanged: {}", seen[1].body);
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

/// Requirement Q10.
#[tokio::test]
async fn a_large_result_is_delivered_as_a_link() {
    on_both(async |db| {
        let engine = engine(&db).await;
        let receiver = Receiver::start(Behavior::Respond(200)).await;
        let webhook = Some(format!(r#"{{"url":"{}"}}"#, receiver.url()));
        let large = format!("\"{}\"", "x".repeat(100 << 10));
        let extras = Extras { webhook, ..Extras::default() };
        let id = run_job(&db.store, extras, "q", End::Finish(Some(large.into()))).await;
        let seen = receiver.wait_for(2).await;
        let body: Value = serde_json::from_str(&seen[1].body).expect("JSON");
        assert_eq!(body["data"]["result_link"], format!("/api/v1/jobs/{id}"));
        assert!(body["data"]["result"].is_null() && seen[1].body.len() < 2_000);
        assert_eq!(seen[1].header("webhook-signature"), None, "requests without a secret are not signed");
        engine.stop().await;
    })
    .await;
}

/// Requirement Q10.
#[tokio::test]
async fn a_queue_webhook_receives_every_change_of_jobs_without_a_webhook() {
    on_both(async |db| {
        let engine = engine(&db).await;
        let (of_queue, of_job) =
            (Receiver::start(Behavior::Respond(200)).await, Receiver::start(Behavior::Respond(200)).await);
        let webhook = domain::Webhook { url: of_queue.url(), secrets: vec!["whsec_YQ==".into()] };
        let settings = domain::QueueSettings { webhook: Some(webhook), ..Default::default() };
        db.store.put_queue(T, name("q"), settings, "me".into()).await.expect("sets");
        let due = db.clock.now().plus_s(3_600);
        let later = NewJob { run_at: Some(due), ..job("q") };
        let canceled = db.store.enqueue(T, vec![later.clone()], None).await.expect("enqueues");
        let EnqueueReply::Accepted(canceled) = canceled else { panic!("no key") };
        db.store.cancel(T, canceled[0].id, "me".into()).await.expect("cancels");
        db.store.enqueue(T, vec![later], None).await.expect("enqueues");
        // The clock must not move while a request is in flight, because its lease would expire.
        wait_until("the first change is delivered", async || {
            let filter = DeliveryFilter { state: Some(DeliveryState::Delivered), job: None };
            db.store.list_deliveries(T, filter, None, 10).await.expect("lists").len() == 1
        })
        .await;
        db.pass_ms(3_601_000).await;
        let states = |seen: &[testkit::receiver::ReceivedRequest]| -> Vec<String> {
            let state = |seen: &testkit::receiver::ReceivedRequest| {
                let body: Value = serde_json::from_str(&seen.body).expect("JSON");
                format!(
                    "{} {}",
                    body["data"]["previous_state"].as_str().unwrap_or("?"),
                    body["type"].as_str().unwrap_or("?")
                )
            };
            seen.iter().map(state).collect()
        };
        assert_eq!(states(&of_queue.wait_for(2).await), ["scheduled job.canceled", "scheduled job.queued"]);
        let (worker, claimed) = claim(&db.store, "q").await;
        let error = domain::JobError { code: "boom".into(), message: "it broke".into(), retryable: false };
        let outcome = Outcome { job: claimed.id, epoch: claimed.epoch, end: End::Fail(error) };
        db.store.settle(T, worker, vec![outcome]).await.expect("settles");
        let seen = of_queue.wait_for(4).await;
        assert_eq!(states(&seen[2..]), ["queued job.working", "working job.failed"]);
        assert!(seen[3].body.contains(r#""error":{"code":"boom""#), "{}", seen[3].body);
        assert!(seen.iter().all(|seen| seen.header("webhook-signature").is_some()));

        let webhook = Some(format!(r#"{{"url":"{}"}}"#, of_job.url()));
        run_job(&db.store, Extras { webhook, ..Extras::default() }, "q", End::Finish(None)).await;
        assert_eq!(states(&of_job.wait_for(2).await), ["queued job.working", "working job.succeeded"]);
        assert_eq!(of_queue.requests().len(), 4, "the job's own webhook takes precedence");
        engine.stop().await;
    })
    .await;
}

/// Requirement Q10.
#[tokio::test]
async fn a_failed_delivery_is_retried_with_backoff_and_records_each_attempt() {
    on_both(async |db| {
        let engine = engine(&db).await;
        let receiver = Receiver::start(Behavior::RespondWith(500, "out of\0order".into())).await;
        let retry = RetryPolicy::new(Some(1_000), None, Some(2.0), None).expect("valid");
        let id =
            insert_deliveries(&db.store, vec![NewDelivery { retry, max_attempts: 4, ..delivery_to(&receiver.url()) }])
                .await[0];
        let first = attempted(&db.store, id, 1).await;
        assert_eq!(first.delivery.state, DeliveryState::Pending);
        let attempt = &first.attempts[0];
        assert_eq!((attempt.status, attempt.response.as_deref()), (Some(500), Some("out of\u{fffd}order")));
        assert_eq!(attempt.error.as_deref(), Some("the receiver answered 500"));
        let wait_ms = first.delivery.due_at.expect("a retry is due").ms_since(attempt.at);
        assert!((1_000_000..2_000_000).contains(&wait_ms), "{wait_ms}");
        db.pass_ms(1_000_500).await;
        let second = attempted(&db.store, id, 2).await;
        let wait_ms = second.delivery.due_at.expect("a retry is due").ms_since(second.attempts[1].at);
        assert!((2_000_000..3_000_000).contains(&wait_ms), "{wait_ms}");
        receiver.set_behavior(Behavior::CloseEarly);
        db.pass_ms(2_000_500).await;
        let third = attempted(&db.store, id, 3).await;
        assert_eq!(third.attempts[2].status, None);
        assert!(third.delivery.error.as_deref().is_some_and(|error| error.starts_with("unreachable")));
        receiver.set_behavior(Behavior::Respond(202));
        db.pass_ms(4_000_500).await;
        let last = in_state(&db.store, id, DeliveryState::Delivered).await;
        assert_eq!((last.delivery.status, last.delivery.error, last.attempts.len()), (Some(202), None, 4));
        let ids: Vec<_> =
            receiver.requests().iter().filter_map(|seen| seen.header("webhook-id").map(str::to_owned)).collect();
        assert!(ids.iter().all(|id| *id == ids[0]), "all attempts have one id: {ids:?}");
        engine.stop().await;
    })
    .await;
}

/// Requirement Q10.
#[tokio::test]
async fn a_delivery_out_of_attempts_fails_and_can_be_redelivered() {
    on_both(async |db| {
        let engine = engine(&db).await;
        let receiver = Receiver::start(Behavior::Respond(500)).await;
        let delivery = NewDelivery { max_attempts: 1, ..delivery_to(&receiver.url()) };
        let id = insert_deliveries(&db.store, vec![delivery]).await[0];
        let failed = in_state(&db.store, id, DeliveryState::Failed).await;
        assert!(failed.delivery.ended_at.is_some() && failed.delivery.due_at.is_none());
        receiver.set_behavior(Behavior::Respond(200));
        db.store.redeliver(T, id, "me".into()).await.expect("redelivers").expect("the delivery exists");
        let done = in_state(&db.store, id, DeliveryState::Delivered).await;
        let statuses: Vec<_> = done.attempts.iter().map(|attempt| attempt.status).collect();
        assert_eq!(statuses, [Some(500), Some(200)]);
        db.store
            .redeliver(T, id, "me".into())
            .await
            .expect("redelivers")
            .expect("a delivered request can be sent again");
        attempted(&db.store, id, 3).await;
        let foreign = db.store.redeliver(TenantId(77), id, "me".into()).await.expect("reads");
        assert!(foreign.is_none(), "another tenant does not see the delivery");
        engine.stop().await;
    })
    .await;
}

/// Requirement Q10.
#[tokio::test]
async fn a_delivery_to_a_forbidden_address_fails_immediately() {
    on_both(async |db| {
        let engine = Engine::start(db.store.clone(), EngineOptions::default()).await.expect("the engine starts");
        let canary = Receiver::start(Behavior::Respond(200)).await;
        let id = insert_deliveries(&db.store, vec![delivery_to(&canary.url())]).await[0];
        let refused = in_state(&db.store, id, DeliveryState::Failed).await;
        assert!(refused.delivery.error.is_some_and(|error| error.contains("private or special")));
        assert_eq!((refused.attempts.len(), canary.connections()), (1, 0));
        engine.stop().await;
    })
    .await;
}

/// Requirement Q10.
#[tokio::test]
async fn a_redirect_is_not_followed_410_is_final_and_retry_after_is_obeyed() {
    on_both(async |db| {
        let engine = engine(&db).await;
        let canary = Receiver::start(Behavior::Respond(200)).await;
        let redirecting = Receiver::start(Behavior::Redirect(canary.url())).await;
        let removed = Receiver::start(Behavior::Respond(410)).await;
        let busy = Receiver::start(Behavior::RetryAfter(7_000)).await;
        let retry = RetryPolicy::new(Some(3_600), None, None, None).expect("valid");
        let redirected = NewDelivery { retry, ..delivery_to(&redirecting.url()) };
        let ids =
            insert_deliveries(&db.store, vec![redirected, delivery_to(&removed.url()), delivery_to(&busy.url())]).await;
        let redirected = attempted(&db.store, ids[0], 1).await;
        assert!(redirected.delivery.error.is_some_and(|error| error.contains("302") && error.contains("redirects")));
        assert_eq!(redirected.delivery.state, DeliveryState::Pending);
        in_state(&db.store, ids[1], DeliveryState::Failed).await;
        let delayed = attempted(&db.store, ids[2], 1).await;
        let wait_ms = delayed.delivery.due_at.expect("a retry is due").ms_since(delayed.attempts[0].at);
        assert!(wait_ms >= 7_000_000, "Retry-After is obeyed: {wait_ms}");
        assert_eq!(canary.connections(), 0);
        engine.stop().await;
    })
    .await;
}

/// Requirement Q10.
#[tokio::test]
async fn an_unresponsive_endpoint_does_not_delay_other_endpoints() {
    on_both(async |db| {
        let engine = engine(&db).await;
        let hanging = Receiver::start(Behavior::Hang).await;
        let not_accepting = Receiver::start(Behavior::DoNotAccept).await;
        let dripping = Receiver::start(Behavior::Drip).await;
        let responsive = Receiver::start(Behavior::Respond(200)).await;
        let mut all = Vec::new();
        for unresponsive in [&hanging, &not_accepting, &dripping] {
            all.extend((0..100).map(|_| delivery_to(&unresponsive.url())));
        }
        insert_deliveries(&db.store, all).await;
        let is_called = async || hanging.connections() > 0 && dripping.connections() > 0;
        wait_until("the unresponsive receivers are called", is_called).await;
        // The timeout of these requests is longer than any wait in a test.
        insert_deliveries(&db.store, (0..50).map(|_| delivery_to(&responsive.url())).collect()).await;
        responsive.wait_for(50).await;
        assert!(hanging.most_open() <= ENDPOINT_CONCURRENCY, "{} at once", hanging.most_open());
        engine.stop().await;
    })
    .await;
}

/// Requirement Q10.
#[tokio::test]
async fn the_circuit_of_a_failing_endpoint_opens_until_one_attempt_succeeds() {
    on_both(async |db| {
        let engine = engine(&db).await;
        let receiver = Receiver::start(Behavior::Respond(503)).await;
        let ids = insert_deliveries(&db.store, (0..40).map(|_| delivery_to(&receiver.url())).collect()).await;
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
        wait_until("no request is in flight", idle).await;
        let called = receiver.requests().len();
        assert!(called < CIRCUIT_FAILURES as usize + 2 * ENDPOINT_CONCURRENCY, "{called} calls of 40");
        receiver.set_behavior(Behavior::Respond(200));
        // A request that fails now must not open the circuit again after the clock has moved.
        wait_until("the last failure is stored", idle).await;
        // Deliveries without an attempt wait only for the circuit. The others also wait for their next attempt.
        db.pass_ms(400_000).await;
        for id in ids {
            in_state(&db.store, id, DeliveryState::Delivered).await;
        }
        assert!(!open().await);
        engine.stop().await;
    })
    .await;
}

/// Requirement T9.
#[tokio::test]
async fn a_failed_delivery_is_retained_while_its_dead_letter_is_unresolved() {
    use store::triggers::dead_letters::list::DeadLetterFilter;
    use store::triggers::dead_letters::replay::{DeadLetterReplay, ReplayedWork};
    on_both(async |db| {
        let engine = engine(&db).await;
        let receiver = Receiver::start(Behavior::Respond(500)).await;
        let new = || NewDelivery { max_attempts: 1, ..delivery_to(&receiver.url()) };
        for id in insert_deliveries(&db.store, vec![new(), new()]).await {
            in_state(&db.store, id, DeliveryState::Failed).await;
        }
        let letters = db.store.list_dead_letters(T, DeadLetterFilter::default(), None, 9).await.expect("lists");
        let (open, ignored) = (&letters[0], &letters[1]);
        let ignoring = db.store.resolve_dead_letter(T, ignored.id, Resolution::Ignored, "me".into(), None);
        ignoring.await.expect("resolves");
        db.pass_ms((FAILED_DELIVERY_RETENTION_S + 60) * 1_000).await;
        db.store.prune_deliveries().await.expect("prunes");
        let of_ignored = DeliveryId::new(ignored.event.uuid());
        assert!(db.store.delivery(T, of_ignored).await.expect("reads").is_none(), "a resolved one is pruned");
        let replayed =
            db.store.replay_dead_letter(T, open.id, None, Caller::new("me").at_depth(7)).await.expect("replays");
        let DeadLetterReplay::Created(ReplayedWork::Delivery(again)) = replayed else { panic!("{replayed:?}") };
        let seen = receiver.wait_for(3).await;
        assert_eq!(seen[2].header("windlass-depth"), Some("7"), "a replay keeps the depth of its caller");
        in_state(&db.store, again, DeliveryState::Failed).await;
        engine.stop().await;
    })
    .await;
}

/// Requirement T6.
#[tokio::test]
async fn a_delivery_out_of_attempts_leaves_one_replayable_dead_letter() {
    use store::triggers::dead_letters::list::DeadLetterFilter;
    use store::triggers::dead_letters::replay::{DeadLetterReplay, ReplayedWork};
    on_both(async |db| {
        let engine = engine(&db).await;
        let receiver = Receiver::start(Behavior::Respond(500)).await;
        let retry = RetryPolicy::new(Some(1), None, None, None).expect("valid");
        let new = || NewDelivery { retry, max_attempts: 2, ..delivery_to(&receiver.url()) };
        let ids = insert_deliveries(&db.store, vec![new(), new()]).await;
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
        assert_eq!(found.len(), 2, "each delivery has one dead letter");
        assert_eq!((found[0].source.as_str(), found[0].op.as_str(), found[0].payload.as_str()), ("test", "sent", "{}"));
        let errors: Vec<_> = found[0].attempts.iter().map(|attempt| attempt.error.message.as_str()).collect();
        assert_eq!(errors, ["the receiver answered 500", "the receiver answered 500"]);

        receiver.set_behavior(Behavior::Respond(200));
        let body = Some(r#"{"edited":true}"#.into());
        let replayed = db.store.replay_dead_letter(T, found[0].id, body, "me").await.expect("replays");
        let DeadLetterReplay::Created(ReplayedWork::Delivery(again)) = replayed else { panic!("{replayed:?}") };
        assert_eq!(in_state(&db.store, again, DeliveryState::Delivered).await.body, r#"{"edited":true}"#);
        let twice = db.store.replay_dead_letter(T, found[0].id, None, "me").await.expect("replays");
        assert_eq!(twice, DeadLetterReplay::AlreadyReplayed(ReplayedWork::Delivery(again)), "a repetition");
        let edited = db.store.replay_dead_letter(T, found[0].id, Some("[]".into()), "me").await.expect("replays");
        assert_eq!(
            edited,
            DeadLetterReplay::OtherPayload(ReplayedWork::Delivery(again)),
            "another payload is reported and not ignored"
        );

        let other = ids.iter().find(|id| found[1].event.uuid() == id.uuid()).expect("the other dead letter");
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
