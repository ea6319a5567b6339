//! Tenant quotas: the rate of new jobs and payload bytes.

use domain::Name;
use store::Store;
use store::access::tenants::quota::{Admission, AdmissionRequest, Quota};
use testkit::on_both;

use crate::support::*;

/// Sets the rates and refreshes the node's cached quota.
async fn set_quota_of_default(store: &Store, jobs_per_s: f64, payload_bytes_per_s: Option<f64>) {
    let quota = Quota { jobs_per_s: Some(jobs_per_s), payload_bytes_per_s, ..Quota::default() };
    assert!(store.set_quota(Name::stored("default"), quota, "me").await.expect("sets"));
    store.authenticate(None).await.expect("authenticates");
}

/// Returns the seconds to wait if the request is over quota. `None` if it is admitted.
async fn retry_after(store: &Store, jobs: usize, payload_bytes: usize) -> Option<u64> {
    match store.admit(T, AdmissionRequest { jobs, payload_bytes }).await.expect("answers") {
        Admission::Admitted => None,
        Admission::Over { retry_s, .. } => Some(retry_s),
    }
}

/// Requirement Q12.
#[tokio::test]
async fn rejected_or_unlimited_use_is_not_charged_to_the_quota() {
    on_both(async |db| {
        set_quota_of_default(&db.store, 10.0, Some(10.0)).await;
        assert_eq!(retry_after(&db.store, 1, 10_000).await, None, "a request above the burst size is admitted as debt");
        assert!(retry_after(&db.store, 9, 1).await.is_some(), "the byte budget is exhausted");
        set_quota_of_default(&db.store, 10.0, None).await;
        assert_eq!(retry_after(&db.store, 9, 10_000_000).await, None, "rejected jobs do not use the quota");
        set_quota_of_default(&db.store, 10.0, Some(10.0)).await;
        let wait_s = retry_after(&db.store, 0, 1).await.expect("the debt of the first request remains");
        assert!(wait_s <= 1_000, "unlimited use does not become debt: {wait_s}");
    })
    .await;
}

/// Requirement Q12.
#[tokio::test]
async fn a_quota_also_applies_on_a_new_node() {
    on_both(async |db| {
        let quota = Quota { waiting_jobs: Some(0), ..Quota::default() };
        assert!(db.store.set_quota(Name::stored("default"), quota, "me").await.expect("sets"));
        assert!(retry_after(&db.another_node().await, 1, 0).await.is_some());
    })
    .await;
}
