//! Q10: which deliveries a node takes when it has fewer places than there is to send.

use std::collections::HashMap;

use domain::TenantId;
use domain::limits::{
    CIRCUIT_FAILURES, DELIVERIES_BEYOND, DELIVERY_GIVE_UP_S, ENDPOINT_CONCURRENCY, ENDPOINTS_PER_ROUND, GIVE_UP_GRACE_S,
};
use store::deliveries::claim::ClaimedDelivery;
use store::deliveries::settle::{Attempted, Blame, Next, SettledDelivery, Verdict};
use store::deliveries::{NewDelivery, insert};
use store::jobs::cancel::Canceled;
use store::jobs::enqueue::{Extras, NewJob};
use store::tenants::create::TenantCreated;
use store::tx::{Operation, Tx};
use store::{Store, StoreError};
use testkit::{job, on_both};

use crate::support::*;

/// Owes requests, as a transaction of the program would.
struct Owe(Vec<NewDelivery>);

impl Operation for Owe {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        insert(tx, self.0.clone()).await.map(drop)
    }
}

pub(crate) async fn owe(store: &Store, tenant: TenantId, urls: impl IntoIterator<Item = String>) {
    let deliveries = urls.into_iter().map(|url| NewDelivery::post(tenant, url, "{}".into())).collect();
    store.write(Owe(deliveries)).await.expect("writes");
}

/// What this many places are given to: endpoints and addresses.
pub(crate) async fn taken(store: &Store, places: usize, under_way: HashMap<i64, usize>) -> Vec<(i64, String)> {
    let claimed = store.claim_deliveries(places, under_way).await.expect("claims").deliveries;
    claimed.into_iter().map(|delivery| (delivery.endpoint, delivery.url)).collect()
}

#[tokio::test]
async fn q10_a_tenant_with_many_slow_receivers_leaves_places_to_another() {
    on_both(async |db| {
        let store = &db.store;
        let made = store.create_tenant(testkit::name("other")).await.expect("makes a tenant");
        let TenantCreated::Created(other) = made else { panic!("{made:?}") };
        for _ in 0..2 * ENDPOINT_CONCURRENCY {
            owe(store, T, (0..10).map(|n| format!("https://slow{n}.example/"))).await;
        }
        db.pass_ms(1_000).await;
        let theirs = "https://theirs.example/".to_owned();
        owe(store, other, [theirs.clone()]).await;
        let took = taken(store, 4, HashMap::new()).await;
        assert!(took.iter().any(|(_, url)| *url == theirs), "{took:?}");
        // What is under way counts.
        let (slow, _) = took.into_iter().find(|(_, url)| *url != theirs).expect("both tenants have places");
        owe(store, other, ["https://theirs-too.example/".to_owned()]).await;
        let took = taken(store, 1, HashMap::from([(slow, 1)])).await;
        assert!(took.len() == 1 && took[0].1 == "https://theirs-too.example/", "{took:?}");
    })
    .await;
}

#[tokio::test]
async fn q10_receivers_that_are_left_alone_hide_no_other() {
    on_both(async |db| {
        let store = &db.store;
        owe(store, T, (0..ENDPOINTS_PER_ROUND).map(|n| format!("https://dead{n}.example/"))).await;
        let hour = if store.is_postgres() { "interval '1 hour'" } else { "3600000000" };
        let dead = format!("update endpoints set failures = 9, open_until = created_at + {hour}");
        run_sql(store, &dead).await.expect("opens the circuits");
        db.pass_ms(1_000).await;
        owe(store, T, ["https://well.example/".to_owned()]).await;
        let claimed = store.claim_deliveries(10, HashMap::new()).await.expect("claims");
        let urls: Vec<&str> = claimed.deliveries.iter().map(|delivery| delivery.url.as_str()).collect();
        assert_eq!((urls, claimed.open_circuits), (vec!["https://well.example/"], ENDPOINTS_PER_ROUND));
    })
    .await;
}

#[tokio::test]
async fn q10_requests_under_way_when_a_circuit_opens_make_its_pause_no_longer() {
    on_both(async |db| {
        let store = &db.store;
        owe(store, T, (0..3).map(|_| "https://down.example/".to_owned())).await;
        let nearly = format!("update endpoints set failures = {}", CIRCUIT_FAILURES - 1);
        run_sql(store, &nearly).await.expect("one failure is left");
        let claimed = store.claim_deliveries(10, HashMap::new()).await.expect("claims").deliveries;
        assert_eq!(claimed.len(), 3);
        for delivery in claimed {
            let next = Next::Again { not_before_s: None };
            let attempted = Attempted {
                delivery: delivery.id,
                attempt: delivery.attempt,
                at: db.clock.now(),
                duration_ms: 1,
                status: None,
                response: None,
                verdict: Verdict::Failed { error: "it is down".into(), blame: Blame::Receiver, next },
            };
            let settled = store.settle_delivery(attempted).await.expect("settles");
            assert_eq!(settled, SettledDelivery::Waiting);
        }
        assert_eq!(number(store, "select failures from endpoints").await, i64::from(CIRCUIT_FAILURES));
    })
    .await;
}

/// As a version that did not look at the text of a URL kept it.
fn with_nul(run_in_s: i64, store: &Store) -> NewJob {
    let webhook = Some(r#"{"url":"https://old.example/\u0000hook"}"#.to_owned());
    let extras = Some(Box::new(Extras { webhook, ..Extras::default() }));
    NewJob { run_at: Some(store.clock().now().plus_s(run_in_s)), extras, ..job("q") }
}

#[tokio::test]
async fn q10_a_webhook_with_a_nul_in_its_url_holds_up_nobody() {
    on_both(async |db| {
        let store = &db.store;
        let odd = push(store, with_nul(60, store)).await;
        let called_off = push(store, with_nul(60, store)).await;
        let plain = push(store, NewJob { run_at: Some(store.clock().now().plus_s(60)), ..job("q") }).await;
        let worker = patient(store).await;
        db.pass_ms(61_000).await;
        assert_eq!(store.promote_due().await.expect("promotes").jobs, 3);
        let canceled = store.cancel(T, called_off, "test".into()).await.expect("cancels");
        assert_eq!(canceled, Canceled::Canceled(called_off));
        let mut claimed: Vec<_> = claim(store, worker, 3).await.into_iter().map(|job| job.id).collect();
        claimed.sort_unstable();
        assert_eq!(claimed, [odd, plain]);
        let took = taken(store, 10, HashMap::new()).await;
        assert!(!took.is_empty() && took.iter().all(|(_, url)| url == "https://old.example/hook"), "{took:?}");
    })
    .await;
}

#[tokio::test]
async fn q10_what_waited_for_us_is_tried_before_it_is_given_up() {
    on_both(async |db| {
        let store = &db.store;
        owe(store, T, ["https://one.example/".to_owned(), "https://other.example/".to_owned()]).await;
        let given_up = async |places| {
            let took = taken(store, places, HashMap::new()).await.len();
            (took, number(store, "select count(*) from deliveries where state = 'failed'").await)
        };
        // Nobody serves for longer than a delivery waits; then a node starts.
        db.clock.advance_ms((DELIVERY_GIVE_UP_S + 60) * 1_000);
        assert_eq!(given_up(0).await, (0, 0), "no beat has ended it yet");
        assert!(store.beat().await.expect("beats"), "the outage is noticed");
        assert_eq!(given_up(1).await, (1, 0));
        db.pass_ms((GIVE_UP_GRACE_S + 60) * 1_000).await;
        assert_eq!(given_up(0).await, (0, 1), "there was time to try the other");
    })
    .await;
}

const ONE: &str = "https://one.example/";

async fn owe_one(store: &Store, times: usize) {
    owe(store, T, (0..times).map(|_| ONE.to_owned())).await;
}

async fn claimed(store: &Store, under_way: HashMap<i64, usize>) -> Vec<ClaimedDelivery> {
    store.claim_deliveries(1_000, under_way).await.expect("claims").deliveries
}

/// All that may be sent is sent and delivered. Gives how many that were.
async fn deliver_all(store: &Store) -> usize {
    let claimed = claimed(store, HashMap::new()).await;
    for delivery in &claimed {
        tell(store, delivery, Verdict::Delivered).await;
    }
    claimed.len()
}

async fn tell(store: &Store, delivery: &ClaimedDelivery, verdict: Verdict) {
    let (delivery, attempt, at) = (delivery.id, delivery.attempt, store.clock().now());
    let attempted = Attempted { delivery, attempt, at, duration_ms: 1, status: None, response: None, verdict };
    store.settle_delivery(attempted).await.expect("settles");
}

#[tokio::test]
async fn q10_a_receiver_that_keeps_up_is_sent_more_at_once_and_half_as_many_after_a_failure() {
    on_both(async |db| {
        let store = &db.store;
        owe_one(store, 300).await;
        for expected in ENDPOINT_CONCURRENCY..20 {
            assert_eq!(deliver_all(store).await, expected);
        }
        let under_way = claimed(store, HashMap::new()).await;
        assert_eq!(under_way.len(), 20);
        let next = Next::Again { not_before_s: None };
        let down = Verdict::Failed { error: "it is down".into(), blame: Blame::Receiver, next };
        tell(store, &under_way[0], down).await;
        for delivery in &under_way[1..] {
            tell(store, delivery, Verdict::Delivered).await;
        }
        assert_eq!(deliver_all(store).await, 10);
    })
    .await;
}

#[tokio::test]
async fn q10_one_delivery_after_the_other_says_nothing_of_many_at_once() {
    on_both(async |db| {
        for _ in 0..2 * ENDPOINT_CONCURRENCY {
            owe_one(&db.store, 1).await;
            assert_eq!(deliver_all(&db.store).await, 1);
        }
        owe_one(&db.store, 2 * ENDPOINT_CONCURRENCY).await;
        assert_eq!(claimed(&db.store, HashMap::new()).await.len(), ENDPOINT_CONCURRENCY);
    })
    .await;
}

#[tokio::test]
async fn q10_who_is_sent_many_at_once_takes_no_place_that_others_begin_with() {
    on_both(async |db| {
        let store = &db.store;
        owe(store, T, ["https://other.example/".to_owned()]).await;
        let (other, _) = taken(store, 1, HashMap::new()).await.remove(0);
        owe_one(store, 100).await;
        for _ in 0..3 {
            deliver_all(store).await;
        }
        let hanging = HashMap::from([(other, ENDPOINT_CONCURRENCY + DELIVERIES_BEYOND - 1)]);
        assert_eq!(claimed(store, hanging).await.len(), ENDPOINT_CONCURRENCY + 1, "one of those is left");
    })
    .await;
}
