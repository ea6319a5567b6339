//! The quota on reported events.

use domain::Name;
use serde_json::json;
use store::access::tenants::quota::Quota;
use testkit::on_both;

use crate::api::Api;

/// Requirement Q12.
#[tokio::test]
async fn ttfs_events_over_the_quota_return_429_and_are_not_recorded() {
    on_both(async |db| {
        let api = Api::new(db).await;
        server::access::local_admin::create_tenant(&api.db.store, "small").await.unwrap();
        let small = api.caller(json!({"name": "p", "role": "producer", "tenant": "small"})).await;
        let viewer = api.caller(json!({"name": "v", "role": "viewer", "tenant": "small"})).await;
        let free = api.caller(json!({"name": "p", "role": "producer"})).await;
        let event = json!({"job_id": "01890a5d-ac96-774b-bcce-b302099a8057", "surface": "cli",
            "event_type": "signal.rendered", "ttfs_ms": 1, "cache_hit": true, "signal_source": "snapshot",
            "kind": "queued", "phase": "unknown", "network_state": "wifi"});
        let events = |count: usize| json!({"events": vec![event.clone(); count]});
        const PATH: &str = "/api/v1/ttfs/events";
        let set = async |quota| assert!(api.db.store.set_quota(Name::stored("small"), quota, "machine").await.unwrap());

        // So few that another one is admitted only after half a minute.
        set(Quota { ttfs_events_per_min: Some(2), ..Quota::default() }).await;
        assert_eq!(small.post(PATH, events(2)).await.status, 202);
        let over = small.post(PATH, events(2)).await;
        over.problem(429, "over_quota", Some("ttfs_events_per_min"));
        assert!(over.header("retry-after").parse::<u64>().unwrap() > 0);
        for _ in 0..3 {
            assert_eq!(free.post(PATH, events(2)).await.status, 202, "another tenant");
        }
        let hour = &viewer.get("/api/v1/ttfs/summary?by=hour").await.json()["items"][0];
        assert_eq!(hour["event_count"], 2);

        set(Quota { ttfs_events_per_min: Some(0), ..Quota::default() }).await;
        small.post(PATH, events(1)).await.problem(429, "over_quota", Some("ttfs_events_per_min"));
        set(Quota::default()).await;
        assert_eq!(small.post(PATH, events(2)).await.status, 202);
    })
    .await;
}
