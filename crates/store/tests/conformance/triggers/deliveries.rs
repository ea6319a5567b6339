//! Claims of deliveries: which ones a node claims when slots are scarce.

use std::collections::HashMap;

use domain::TenantId;
use domain::limits::{
    CIRCUIT_FAILURES, DELIVERIES_ABOVE_BASE, DELIVERIES_IN_FLIGHT, DELIVERY_GIVE_UP_S, ENDPOINT_CONCURRENCY,
    ENDPOINTS_PER_ROUND, FAILING_DELIVERIES, GIVE_UP_GRACE_S,
};
use store::access::tenants::create::TenantCreated;
use store::db::tx::{Operation, Tx};
use store::queue::cancel::Canceled;
use store::queue::enqueue::{Extras, NewJob};
use store::triggers::deliveries::claim::ClaimedDelivery;
use store::triggers::deliveries::settle::{Blame, CompletedAttempt, DeliveryOutcome, RetryAdvice, SettledDelivery};
use store::triggers::deliveries::{NewDelivery, insert};
use store::{Store, StoreError};
use testkit::{job, on_both};

use crate::support::*;

/// Inserts deliveries in a write transaction.
struct EnqueueDeliveries(Vec<NewDelivery>);

impl Operation for EnqueueDeliveries {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        insert(tx, self.0.clone()).await.map(drop)
    }
}

pub(crate) async fn enqueue_deliveries(store: &Store, tenant: TenantId, urls: impl IntoIterator<Item = String>) {
    let deliveries = urls.into_iter().map(|url| NewDelivery::post(tenant, url, "{}".into())).collect();
    store.write(EnqueueDeliveries(deliveries)).await.expect("writes");
}

/// Claims deliveries for this many slots. Returns endpoints and URLs.
pub(crate) async fn claim_deliveries(
    store: &Store,
    slots: usize,
    in_flight: HashMap<i64, usize>,
) -> Vec<(i64, String)> {
    let claimed = store.claim_deliveries(slots, in_flight).await.expect("claims").deliveries;
    claimed.into_iter().map(|delivery| (delivery.endpoint, delivery.url)).collect()
}

/// Requirement Q10.
#[tokio::test]
async fn a_tenant_with_many_slow_endpoints_leaves_delivery_slots_to_others() {
    on_both(async |db| {
        let store = &db.store;
        let created = store.create_tenant(testkit::name("other")).await.expect("creates a tenant");
        let TenantCreated::Created(other) = created else { panic!("{created:?}") };
        for _ in 0..2 * ENDPOINT_CONCURRENCY {
            enqueue_deliveries(store, T, (0..10).map(|n| format!("https://slow{n}.example/"))).await;
        }
        db.pass_ms(1_000).await;
        let theirs = "https://theirs.example/".to_owned();
        enqueue_deliveries(store, other, [theirs.clone()]).await;
        let claimed_now = claim_deliveries(store, 4, HashMap::new()).await;
        assert!(claimed_now.iter().any(|(_, url)| *url == theirs), "{claimed_now:?}");
        // Deliveries in flight count.
        let (slow, _) = claimed_now.into_iter().find(|(_, url)| *url != theirs).expect("both tenants get slots");
        enqueue_deliveries(store, other, ["https://theirs-too.example/".to_owned()]).await;
        let claimed_now = claim_deliveries(store, 1, HashMap::from([(slow, 1)])).await;
        assert!(claimed_now.len() == 1 && claimed_now[0].1 == "https://theirs-too.example/", "{claimed_now:?}");
    })
    .await;
}

/// Requirement Q10.
#[tokio::test]
async fn many_endpoints_of_a_tenant_do_not_hide_those_of_others() {
    on_both(async |db| {
        let store = &db.store;
        let created = store.create_tenant(testkit::name("other")).await.expect("creates a tenant");
        let TenantCreated::Created(other) = created else { panic!("{created:?}") };
        let dead = (0..ENDPOINTS_PER_ROUND + 10).map(|n| format!("https://dead{n}.example/"));
        enqueue_deliveries(store, T, dead).await;
        db.pass_ms(60_000).await;
        let theirs = "https://theirs.example/".to_owned();
        enqueue_deliveries(store, other, [theirs.clone()]).await;
        let claimed = claim_deliveries(store, 4, HashMap::new()).await;
        assert!(claimed.iter().any(|(_, url)| *url == theirs), "{claimed:?}");
    })
    .await;
}

/// Requirement Q10.
#[tokio::test]
async fn slots_are_kept_for_endpoints_that_answer() {
    on_both(async |db| {
        let store = &db.store;
        for _ in 0..ENDPOINT_CONCURRENCY {
            let dead = DELIVERIES_IN_FLIGHT / ENDPOINT_CONCURRENCY;
            enqueue_deliveries(store, T, (0..dead).map(|n| format!("https://dead{n}.example/"))).await;
        }
        run_sql(store, "update endpoints set failures = 1").await.expect("fails once");
        db.pass_ms(60_000).await;
        enqueue_deliveries(store, T, ["https://well.example/".to_owned()]).await;
        let claimed = claim_deliveries(store, DELIVERIES_IN_FLIGHT, HashMap::new()).await;
        assert_eq!(claimed.len(), FAILING_DELIVERIES + 1);
        assert!(claimed.iter().any(|(_, url)| url == "https://well.example/"), "{claimed:?}");
        // Deliveries in flight count.
        let mut in_flight = HashMap::new();
        for (endpoint, _) in claimed {
            *in_flight.entry(endpoint).or_insert(0) += 1;
        }
        assert_eq!(claim_deliveries(store, 10, in_flight).await, []);
    })
    .await;
}

/// Requirement Q10.
#[tokio::test]
async fn endpoints_with_open_circuits_do_not_hide_others() {
    on_both(async |db| {
        let store = &db.store;
        enqueue_deliveries(store, T, (0..ENDPOINTS_PER_ROUND).map(|n| format!("https://dead{n}.example/"))).await;
        let hour = if store.is_postgres() { "interval '1 hour'" } else { "3600000000" };
        let dead = format!("update endpoints set failures = 9, open_until = created_at + {hour}");
        run_sql(store, &dead).await.expect("opens the circuits");
        db.pass_ms(1_000).await;
        enqueue_deliveries(store, T, ["https://well.example/".to_owned()]).await;
        let claimed = store.claim_deliveries(10, HashMap::new()).await.expect("claims");
        let urls: Vec<&str> = claimed.deliveries.iter().map(|delivery| delivery.url.as_str()).collect();
        assert_eq!((urls, claimed.open_circuits), (vec!["https://well.example/"], ENDPOINTS_PER_ROUND));
    })
    .await;
}

/// Requirement Q10.
#[tokio::test]
async fn requests_in_flight_when_a_circuit_opens_do_not_extend_its_pause() {
    on_both(async |db| {
        let store = &db.store;
        enqueue_deliveries(store, T, (0..3).map(|_| "https://down.example/".to_owned())).await;
        let nearly = format!("update endpoints set failures = {}", CIRCUIT_FAILURES - 1);
        run_sql(store, &nearly).await.expect("one more failure opens the circuit");
        let claimed = store.claim_deliveries(10, HashMap::new()).await.expect("claims").deliveries;
        assert_eq!(claimed.len(), 3);
        for delivery in claimed {
            let next = RetryAdvice::Allowed { not_before_s: None };
            let attempted = CompletedAttempt {
                delivery: delivery.id,
                attempt: delivery.attempt,
                at: db.clock.now(),
                duration_ms: 1,
                status: None,
                response: None,
                outcome: DeliveryOutcome::Failed { error: "503".into(), blame: Blame::Receiver, next },
            };
            let settled = store.settle_delivery(attempted).await.expect("settles");
            assert_eq!(settled, SettledDelivery::Waiting);
        }
        assert_eq!(number(store, "select failures from endpoints").await, i64::from(CIRCUIT_FAILURES));
    })
    .await;
}

/// A webhook URL as stored by a version that did not validate it.
fn with_nul(run_in_s: i64, store: &Store) -> NewJob {
    let webhook = Some(r#"{"url":"https://old.example/\u0000hook"}"#.to_owned());
    let extras = Some(Box::new(Extras { webhook, ..Extras::default() }));
    NewJob { run_at: Some(store.clock().now().plus_s(run_in_s)), extras, ..job("q") }
}

/// Requirement Q10.
#[tokio::test]
async fn a_webhook_with_a_nul_in_its_url_does_not_block_other_jobs() {
    on_both(async |db| {
        let store = &db.store;
        let odd = push(store, with_nul(60, store)).await;
        let canceled_job = push(store, with_nul(60, store)).await;
        let plain = push(store, NewJob { run_at: Some(store.clock().now().plus_s(60)), ..job("q") }).await;
        let worker = register_with_long_lease(store).await;
        db.pass_ms(61_000).await;
        assert_eq!(store.promote_due().await.expect("promotes").jobs, 3);
        let canceled = store.cancel(T, canceled_job, "test".into()).await.expect("cancels");
        assert_eq!(canceled, Canceled::Canceled(canceled_job));
        let mut claimed: Vec<_> = claim(store, worker, 3).await.into_iter().map(|job| job.id).collect();
        claimed.sort_unstable();
        assert_eq!(claimed, [odd, plain]);
        let claimed_now = claim_deliveries(store, 10, HashMap::new()).await;
        assert!(
            !claimed_now.is_empty() && claimed_now.iter().all(|(_, url)| url == "https://old.example/hook"),
            "{claimed_now:?}"
        );
    })
    .await;
}

/// Requirement Q10.
#[tokio::test]
async fn a_delivery_that_waited_through_downtime_is_attempted_before_it_expires() {
    on_both(async |db| {
        let store = &db.store;
        enqueue_deliveries(store, T, ["https://one.example/".to_owned(), "https://other.example/".to_owned()]).await;
        let expired = async |slots| {
            let claimed_now = claim_deliveries(store, slots, HashMap::new()).await.len();
            (claimed_now, number(store, "select count(*) from deliveries where state = 'failed'").await)
        };
        // The service is down for longer than a delivery may wait; then a node starts.
        db.clock.advance_ms((DELIVERY_GIVE_UP_S + 60) * 1_000);
        assert_eq!(expired(0).await, (0, 0), "no heartbeat has ended the outage yet");
        assert!(store.beat().await.expect("beats"), "the outage is noticed");
        assert_eq!(expired(1).await, (1, 0));
        db.pass_ms((GIVE_UP_GRACE_S + 60) * 1_000).await;
        assert_eq!(expired(0).await, (0, 1), "the grace period of the other has passed");
    })
    .await;
}

const ONE: &str = "https://one.example/";

async fn enqueue_for_one(store: &Store, times: usize) {
    enqueue_deliveries(store, T, (0..times).map(|_| ONE.to_owned())).await;
}

async fn claimed(store: &Store, in_flight: HashMap<i64, usize>) -> Vec<ClaimedDelivery> {
    store.claim_deliveries(1_000, in_flight).await.expect("claims").deliveries
}

/// Claims and delivers everything that may be sent. Returns the number of deliveries.
async fn deliver_all(store: &Store) -> usize {
    let claimed = claimed(store, HashMap::new()).await;
    for delivery in &claimed {
        settle_attempt(store, delivery, DeliveryOutcome::Delivered).await;
    }
    claimed.len()
}

async fn settle_attempt(store: &Store, delivery: &ClaimedDelivery, outcome: DeliveryOutcome) {
    let (delivery, attempt, at) = (delivery.id, delivery.attempt, store.clock().now());
    let attempted = CompletedAttempt { delivery, attempt, at, duration_ms: 1, status: None, response: None, outcome };
    store.settle_delivery(attempted).await.expect("settles");
}

/// Requirement Q10.
#[tokio::test]
async fn endpoint_concurrency_grows_with_success_and_halves_after_a_failure() {
    on_both(async |db| {
        let store = &db.store;
        enqueue_for_one(store, 300).await;
        for expected in ENDPOINT_CONCURRENCY..20 {
            assert_eq!(deliver_all(store).await, expected);
        }
        let in_flight = claimed(store, HashMap::new()).await;
        assert_eq!(in_flight.len(), 20);
        let next = RetryAdvice::Allowed { not_before_s: None };
        let down = DeliveryOutcome::Failed { error: "503".into(), blame: Blame::Receiver, next };
        settle_attempt(store, &in_flight[0], down).await;
        for delivery in &in_flight[1..] {
            settle_attempt(store, delivery, DeliveryOutcome::Delivered).await;
        }
        assert_eq!(deliver_all(store).await, 10);
    })
    .await;
}

/// Requirement Q10.
#[tokio::test]
async fn sequential_deliveries_do_not_raise_endpoint_concurrency() {
    on_both(async |db| {
        for _ in 0..2 * ENDPOINT_CONCURRENCY {
            enqueue_for_one(&db.store, 1).await;
            assert_eq!(deliver_all(&db.store).await, 1);
        }
        enqueue_for_one(&db.store, 2 * ENDPOINT_CONCURRENCY).await;
        assert_eq!(claimed(&db.store, HashMap::new()).await.len(), ENDPOINT_CONCURRENCY);
    })
    .await;
}

/// Requirement Q10.
#[tokio::test]
async fn an_endpoint_above_its_base_concurrency_leaves_slots_to_others() {
    on_both(async |db| {
        let store = &db.store;
        enqueue_deliveries(store, T, ["https://other.example/".to_owned()]).await;
        let (other, _) = claim_deliveries(store, 1, HashMap::new()).await.remove(0);
        enqueue_for_one(store, 100).await;
        for _ in 0..3 {
            deliver_all(store).await;
        }
        let hanging = HashMap::from([(other, ENDPOINT_CONCURRENCY + DELIVERIES_ABOVE_BASE - 1)]);
        assert_eq!(claimed(store, hanging).await.len(), ENDPOINT_CONCURRENCY + 1, "one endpoint still has a free slot");
    })
    .await;
}
