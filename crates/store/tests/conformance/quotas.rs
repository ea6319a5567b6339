//! What a tenant may bring in (Q12).

use domain::Name;
use store::Store;
use store::tenants::quota::{Admission, Quota, Wanted};
use testkit::on_both;

use crate::support::*;

/// Sets the rates and has them looked at.
async fn limit(store: &Store, jobs_per_s: f64, payload_bytes_per_s: Option<f64>) {
    let quota = Quota { jobs_per_s: Some(jobs_per_s), payload_bytes_per_s, ..Quota::default() };
    assert!(store.set_quota(Name::stored("default"), quota, "me").await.expect("sets"));
    store.authenticate(None).await.expect("looks");
}

/// Nothing when it may come in, otherwise in how many seconds.
async fn refused(store: &Store, jobs: usize, payload_bytes: usize) -> Option<u64> {
    match store.admit(T, Wanted { jobs, payload_bytes }).await.expect("answers") {
        Admission::Admitted => None,
        Admission::Over { retry_s, .. } => Some(retry_s),
    }
}

#[tokio::test]
async fn q12_what_is_refused_or_not_limited_is_charged_to_no_rate() {
    on_both(async |db| {
        limit(&db.store, 10.0, Some(10.0)).await;
        assert_eq!(refused(&db.store, 1, 10_000).await, None, "more than there ever is gets in, and is owed");
        assert!(refused(&db.store, 9, 1).await.is_some(), "for its bytes");
        limit(&db.store, 10.0, None).await;
        assert_eq!(refused(&db.store, 9, 10_000_000).await, None, "the jobs that were refused were not counted");
        limit(&db.store, 10.0, Some(10.0)).await;
        let wait_s = refused(&db.store, 0, 1).await.expect("the first is still owed");
        assert!(wait_s <= 1_000, "what nobody limited is not owed: {wait_s}");
    })
    .await;
}

#[tokio::test]
async fn q12_a_node_that_answers_nobody_keeps_to_a_quota_too() {
    on_both(async |db| {
        let quota = Quota { waiting_jobs: Some(0), ..Quota::default() };
        assert!(db.store.set_quota(Name::stored("default"), quota, "me").await.expect("sets"));
        assert!(refused(&db.another_node().await, 1, 0).await.is_some());
    })
    .await;
}
