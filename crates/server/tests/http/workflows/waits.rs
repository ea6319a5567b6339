//! Suspended jobs over HTTP: events, approvals and children.

use serde_json::{Value, json};
use testkit::on_both;

use crate::api::{Api, Response};

impl Api {
    async fn suspend(&self, worker: &str, job: &str, epoch: i64, wake: Value) -> Response {
        self.settle(worker, json!({"job_id": job, "epoch": epoch, "outcome": "suspend", "wake": wake})).await
    }

    async fn state(&self, job: &str) -> String {
        self.get(&format!("/api/v1/jobs/{job}")).await.json()["state"].as_str().unwrap().to_owned()
    }
}

#[tokio::test]
async fn a_suspended_job_resumes_with_the_event_that_it_waited_for() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let (job, worker, epoch) = api.claimed("q").await;
        let wait = json!([{"op": "event", "key": "wait", "name": "paid", "match": {"order": 7}, "timeout_s": 3600}]);
        api.journal(&worker, &job, epoch, wait).await;
        let suspended = api.suspend(&worker, &job, epoch, json!({"any": ["wait"]})).await;
        assert_eq!(suspended.json()["results"][0]["status"], "applied");
        assert_eq!(api.state(&job).await, "waiting");
        let path = format!("/api/v1/jobs/{job}/events/paid");
        assert_eq!(api.post(&path, json!({"order": 8})).await.status, 202);
        assert_eq!(api.state(&job).await, "waiting");
        assert_eq!(api.post(&path, json!({"order": 7, "total": 99})).await.status, 202);
        let claimed = api.next_job(&worker).await;
        let entry = &claimed["journal"]["entries"][0];
        assert_eq!((&claimed["id"], &entry["result"]), (&json!(job), &json!({"order": 7, "total": 99})));
        let missing = api.post("/api/v1/jobs/00000000-0000-7000-8000-000000000000/events/paid", json!(1)).await;
        missing.problem(404, "not_found", None);
        api.settle(&worker, json!({"job_id": job, "epoch": claimed["epoch"], "outcome": "finish"})).await;
        api.post(&path, json!(1)).await.problem(409, "already_ended", None);
    })
    .await;
}

#[tokio::test]
async fn an_approval_needs_its_right_and_is_answered_once() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let (job, worker, epoch) = api.claimed("q").await;
        let ask = json!([{"op": "approval", "key": "pay/now", "title": "Pay 99?", "right": "operate"}]);
        api.journal(&worker, &job, epoch, ask).await;
        api.suspend(&worker, &job, epoch, json!({"all": ["pay/now"]})).await;
        let path = format!("/api/v1/jobs/{job}/approvals/pay%2Fnow");
        let producer = api.caller(json!({"name": "producer", "role": "producer"})).await;
        producer.post(&path, json!({"approve": true})).await.problem(403, "forbidden", None);
        let operator = api.caller(json!({"name": "boss", "role": "operator"})).await;
        let answer = operator.post(&path, json!({"approve": true, "note": "fine"})).await;
        assert_eq!(answer.status, 200, "{:?}", answer.body);
        let answer = answer.json();
        assert_eq!(
            (&answer["approved"], &answer["by"], &answer["note"]),
            (&json!(true), &json!("boss"), &json!("fine"))
        );
        assert_eq!(operator.post(&path, json!({"approve": true})).await.json(), answer);
        operator.post(&path, json!({"approve": false})).await.problem(409, "already_resolved", None);
        let other = format!("/api/v1/jobs/{job}/approvals/other");
        operator.post(&other, json!({"approve": true})).await.problem(404, "not_found", None);
    })
    .await;
}

#[tokio::test]
async fn a_job_waits_for_the_children_that_it_started() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let (job, worker, epoch) = api.claimed("q").await;
        let child = json!({"queue": "parts", "kind": "k", "payload": 1});
        let start = json!([{"op": "child", "key": "parts", "jobs": [child, child]}]);
        api.journal(&worker, &job, epoch, start).await;
        api.suspend(&worker, &job, epoch, json!({"all": ["parts"]})).await;
        let helper = api.worker("parts").await;
        for _ in 0..2 {
            let part = api.next_job(&helper).await;
            let outcome = json!({"job_id": part["id"], "epoch": part["epoch"], "outcome": "finish", "result": 5});
            api.settle(&helper, outcome).await;
        }
        let claimed = api.next_job(&worker).await;
        let outcomes = &claimed["journal"]["entries"][0]["result"];
        assert_eq!((&outcomes[0]["state"], &outcomes[1]["result"]), (&json!("succeeded"), &json!(5)));
    })
    .await;
}

#[tokio::test]
async fn a_wait_with_an_invalid_member_names_it() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let (job, worker, epoch) = api.claimed("q").await;
        let child = json!({"queue": "parts", "kind": "k", "unique_key": "u"});
        for (op, member) in [
            (json!({"op": "sleep", "key": "$cancel", "for_s": 1}), "key"),
            (json!({"op": "sleep", "key": "a"}), "for_s"),
            (json!({"op": "sleep", "key": "a", "for_s": 1, "until": "2030-01-01T00:00:00Z"}), "for_s"),
            (json!({"op": "sleep", "key": "a", "for_s": -1}), "for_s"),
            (json!({"op": "sleep", "key": "a", "for_s": 1e12}), "for_s"),
            (json!({"op": "event", "key": "a"}), "name"),
            (json!({"op": "event", "key": "a", "name": "e", "timeout_s": -1}), "timeout_s"),
            (json!({"op": "event", "key": "a", "name": "e", "result": 1}), "result"),
            (json!({"op": "approval", "key": "a"}), "title"),
            (json!({"op": "approval", "key": "a", "title": "t", "right": "fly"}), "right"),
            (json!({"op": "child", "key": "a"}), "jobs"),
            (json!({"op": "child", "key": "a", "jobs": []}), "jobs"),
            (json!({"op": "child", "key": "a", "jobs": [child]}), "jobs[0].unique_key"),
        ] {
            let field = format!("writes[0].ops[0].{member}");
            api.journal(&worker, &job, epoch, json!([op])).await.problem(422, "invalid_field", Some(&field));
        }
        for (wake, field) in [
            (json!({}), "outcomes[0].wake"),
            (json!({"any": []}), "outcomes[0].wake.any"),
            (json!({"any": ["a"], "all": ["a"]}), "outcomes[0].wake"),
            (json!({"count": 2, "of": ["a"]}), "outcomes[0].wake.count"),
            (json!({"any": ["no such key"]}), "outcomes[0].wake"),
        ] {
            api.suspend(&worker, &job, epoch, wake).await.problem(422, "invalid_field", Some(field));
        }
        let no_payload = json!({"job_id": job, "epoch": epoch, "outcome": "continue_as"});
        api.settle(&worker, no_payload).await.problem(422, "invalid_field", Some("outcomes[0].payload"));
        assert_eq!(api.state(&job).await, "working");
    })
    .await;
}

#[tokio::test]
async fn a_canceled_job_with_a_journal_runs_once_more_to_undo_its_steps() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let (job, worker, epoch) = api.claimed("q").await;
        let ops =
            json!([{"op": "step", "key": "book", "result": 1}, {"op": "approval", "key": "pay", "title": "Pay?"}]);
        api.journal(&worker, &job, epoch, ops).await;
        api.suspend(&worker, &job, epoch, json!({"any": ["pay"]})).await;
        let cancel = format!("/api/v1/jobs/{job}/cancel");
        for bad in [json!({"compensate": "yes"}), json!({"undo": true})] {
            let refused = api.post(&cancel, bad).await;
            assert_eq!(refused.status, 422, "{:?}", refused.body);
        }
        assert_eq!(api.state(&job).await, "waiting");
        for _ in 0..2 {
            let canceled = api.post(&cancel, json!({"compensate": true})).await.json();
            assert_eq!((&canceled["id"], &canceled["state"]), (&json!(job), &json!("queued")));
        }
        let resumed = api.next_job(&worker).await;
        let entries = resumed["journal"]["entries"].as_array().unwrap();
        let keys: Vec<&str> = entries.iter().map(|entry| entry["key"].as_str().unwrap()).collect();
        assert_eq!(keys, ["book", "pay", "$cancel"]);
        let outcome = json!({"job_id": job, "epoch": resumed["epoch"], "outcome": "cancel"});
        api.settle(&worker, outcome).await;
        assert_eq!(api.state(&job).await, "canceled");
        api.post(&format!("/api/v1/jobs/{job}/approvals/pay"), json!({"approve": true})).await.problem(
            409,
            "already_ended",
            None,
        );
    })
    .await;
}
