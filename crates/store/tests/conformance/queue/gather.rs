//! Debounce and batch: requests with one unique key become one job, until the job starts.

use domain::limits::PAYLOAD_BYTES;
use domain::{JobId, JobState};
use store::Store;
use store::queue::enqueue::{Accepted, Extras, Gather, NewJob, Unique};
use testkit::{job, on_both};

use crate::support::*;
use crate::triggers::declarations::assert_verified;

const DEBOUNCE: Gather = Gather::Debounce { delay_s: 10, max_s: Some(25) };
const BATCH: Gather = Gather::Batch { max: 3, within_s: 10 };

fn keyed(gather: Gather, payload: &str) -> NewJob {
    let unique = Some(Unique { key: "u".into(), for_s: None });
    let extras = Extras { unique, gather: Some(gather), ..Extras::default() };
    NewJob { payload: payload.into(), extras: Some(Box::new(extras)), ..job("q") }
}

async fn send(store: &Store, gather: Gather, payload: &str) -> Accepted {
    push_all(store, vec![keyed(gather, payload)]).await.remove(0)
}

async fn payload(store: &Store, job: JobId) -> String {
    get(store, job).await.payload
}

async fn promoted(store: &Store) -> usize {
    store.promote_due().await.expect("promotes").jobs
}

#[tokio::test]
async fn a_debounced_job_runs_once_with_the_last_payload_after_a_pause() {
    on_both(async |db| {
        let first = send(&db.store, DEBOUNCE, "1").await;
        assert_eq!((first.existing, first.state), (false, JobState::Scheduled));
        db.pass_ms(9_000).await;
        let second = send(&db.store, DEBOUNCE, "2").await;
        assert_eq!((second.id, second.existing), (first.id, true));
        db.pass_ms(9_000).await;
        assert_eq!(promoted(&db.store).await, 0, "the second request delayed it");
        assert_eq!(send(&db.store, DEBOUNCE, "3").await.id, first.id);
        // 18 s have passed: 10 s more would exceed 25 s after the first request.
        db.pass_ms(7_001).await;
        assert_eq!((promoted(&db.store).await, payload(&db.store, first.id).await.as_str()), (1, "3"));
        assert_eq!(number(&db.store, "select count(*) from jobs").await, 1);
        assert_counters_match(&db.store).await;
        assert_verified(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn a_started_job_takes_no_more_payloads_and_the_next_request_makes_a_new_job() {
    on_both(async |db| {
        let worker = register_with_long_lease(&db.store).await;
        for gather in [DEBOUNCE, BATCH] {
            let first = send(&db.store, gather, "1").await;
            db.pass_ms(10_001).await;
            promoted(&db.store).await;
            let claimed = claim_one(&db.store, worker).await;
            let second = send(&db.store, gather, "2").await;
            assert!(!second.existing && second.id != first.id, "{gather:?}");
            finish(&db.store, worker, &claimed).await;
            // The end of the first job does not free the key of the second.
            assert_eq!(send(&db.store, gather, "3").await.id, second.id);
            assert_verified(&db.store).await;
            db.store.cancel(T, second.id, "me".into()).await.expect("cancels");
            let third = send(&db.store, gather, "4").await;
            assert!(!third.existing, "the end of the second frees it");
            db.store.cancel(T, third.id, "me".into()).await.expect("cancels");
        }
        assert_counters_match(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn a_batch_runs_when_it_is_full_or_its_time_has_come() {
    on_both(async |db| {
        let first = send(&db.store, BATCH, r#"{"n":1}"#).await;
        db.pass_ms(4_000).await;
        assert_eq!(send(&db.store, BATCH, "2").await.id, first.id);
        assert_eq!(promoted(&db.store).await, 0);
        assert_eq!(send(&db.store, BATCH, "3").await.id, first.id);
        assert_eq!(promoted(&db.store).await, 1, "a full batch runs at once");
        assert_eq!(payload(&db.store, first.id).await, r#"[{"n":1},2,3]"#);
        let next = send(&db.store, BATCH, "4").await;
        assert!(!next.existing, "a full batch takes nothing more");
        db.pass_ms(9_999).await;
        assert_eq!(send(&db.store, BATCH, "5").await.id, next.id);
        db.pass_ms(2).await;
        assert_eq!(promoted(&db.store).await, 1, "10 s after the first payload");
        assert_eq!(payload(&db.store, next.id).await, "[4,5]");
        assert_counters_match(&db.store).await;
        assert_verified(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn requests_of_one_commit_become_full_batches() {
    on_both(async |db| {
        let jobs = (0..7).map(|number| keyed(BATCH, &number.to_string())).collect();
        let accepted = push_all(&db.store, jobs).await;
        let existing: Vec<bool> = accepted.iter().map(|job| job.existing).collect();
        assert_eq!(existing, [false, true, true, false, true, true, false]);
        let mut payloads = Vec::new();
        for number in [0, 3, 6] {
            let job = get(&db.store, accepted[number].id).await;
            payloads.push((job.payload, job.state.to_string()));
        }
        let expected = [("[0,1,2]", "queued"), ("[3,4,5]", "queued"), ("[6]", "scheduled")];
        assert_eq!(payloads, expected.map(|(payload, state)| (payload.to_owned(), state.to_owned())));
        assert_eq!(number(&db.store, "select count(*) from jobs").await, 3);
        assert_eq!(send(&db.store, BATCH, "7").await.id, accepted[6].id);
        assert_counters_match(&db.store).await;
        assert_verified(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn a_batch_ends_before_its_payload_is_too_large() {
    on_both(async |db| {
        let large = format!("\"{}\"", "x".repeat(PAYLOAD_BYTES / 2));
        let first = send(&db.store, BATCH, &large).await;
        let second = send(&db.store, BATCH, &large).await;
        assert!(!second.existing && second.id != first.id);
        assert_eq!(payload(&db.store, first.id).await.len(), large.len() + 2);
    })
    .await;
}

#[tokio::test]
async fn concurrent_requests_on_two_nodes_lose_no_payload() {
    on_both(async |db| {
        let other = if db.store.is_postgres() { db.another_node().await } else { db.store.clone() };
        let gather = Gather::Batch { max: 10_000, within_s: 1 };
        let worker = register_with_long_lease(&db.store).await;
        let requests = (0..60).map(|number| {
            let store = if number % 2 == 0 { &db.store } else { &other };
            async move { send(store, gather, &number.to_string()).await }
        });
        let work = async {
            let mut got: Vec<i64> = Vec::new();
            for _ in 0..8 {
                db.pass_ms(1_001).await;
                promoted(&db.store).await;
                for claimed in claim(&db.store, worker, 10).await {
                    got.extend(serde_json::from_str::<Vec<i64>>(&claimed.payload).expect("an array"));
                    finish(&db.store, worker, &claimed).await;
                }
            }
            got
        };
        let (_, mut got) = tokio::join!(futures_util::future::join_all(requests), work);
        db.pass_ms(1_001).await;
        promoted(&db.store).await;
        for claimed in claim(&db.store, worker, 100).await {
            got.extend(serde_json::from_str::<Vec<i64>>(&claimed.payload).expect("an array"));
        }
        got.sort_unstable();
        assert_eq!(got, (0..60).collect::<Vec<_>>(), "each payload runs once");
        assert_counters_match(&db.store).await;
        assert_verified(&db.store).await;
    })
    .await;
}
