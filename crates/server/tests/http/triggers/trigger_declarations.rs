//! Error messages for invalid trigger declarations.

use serde_json::{Value, json};
use testkit::{Database, on_both};

use crate::api::{Api, json_request};
use crate::triggers::runs::TRIGGERS;

/// Requirement X10.
#[tokio::test]
async fn a_malformed_trigger_target_is_explained_by_field() {
    let api = Api::new(Database::sqlite().await).await;
    let kinds = "`job`, `http`, `script` or `runtime`";
    let job = |members: Value| {
        let mut job = json!({"queue": "q", "kind": "k"});
        job.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
        json!({ "job": job })
    };
    let cases = [
        (json!("job"), format!("target must be an object with one member: {kinds}")),
        (json!([]), format!("target must be an object with one member: {kinds}")),
        (json!({}), format!("target must have exactly one member: {kinds}")),
        (json!({"job": {}, "http": {}}), format!("target must have exactly one member: {kinds}")),
        (json!({"jobs": {}}), format!("target.jobs is unknown; expected {kinds}")),
        (json!({"job": "q"}), "target.job must be an object".into()),
        (json!({"job": {"queue": "q"}}), "target.job.kind is missing".into()),
        (json!({"script": 5}), "target.script must be a string: the source of the script".into()),
        (json!({"http": {"url": 5}}), "target.http.url must be a string, not 5".into()),
        (
            json!({"http": {"url": "https://example.com", "headers": {"a": true}}}),
            "target.http.headers.a must be a string, not true".into(),
        ),
        (json!({"runtime": {"name": "llama"}}), "target.runtime.operation is missing".into()),
        (job(json!({"queue": 5})), "target.job.queue must be a string, not 5".into()),
        (job(json!({"priority": "high"})), "target.job.priority must be an integer, not a string".into()),
        (job(json!({"retry": "often"})), "target.job.retry must be an object, not a string".into()),
        (
            job(json!({"retry": {"initial_s": -1}})),
            "target.job.retry.initial_s must be a non-negative integer, not -1".into(),
        ),
        (job(json!({"tags": "a"})), "target.job.tags must be an array, not a string".into()),
        (job(json!({"webhook": "https://example.com"})), "target.job.webhook must be an object, not a string".into()),
        (job(json!({"webhook": {}})), "target.job.webhook.url is missing".into()),
        (
            job(json!({"retry": {"often": true}})),
            "target.job.retry.often is unknown; expected one of `initial_s`, `maximum_s`, `exponent`, `jitter`".into(),
        ),
    ];
    for (target, expected) in cases {
        let body = json!({"name": "t", "source": "kv", "target": target});
        let response = api.post(TRIGGERS, body).await;
        assert_eq!((response.status.as_u16(), response.json()["detail"].as_str()), (422, Some(&*expected)), "{target}");
    }
}

/// Requirement X10.
#[tokio::test]
async fn an_unknown_filter_field_lists_the_known_ones() {
    let api = Api::new(Database::sqlite().await).await;
    for (source, filter, expected) in [
        ("dead_letter", json!({"sorce": "job"}), "filter.sorce is unknown; expected `source` or `when`"),
        ("dead_letter", json!({"queue": "q"}), "filter.queue is unknown; expected `source` or `when`"),
        ("email", json!({"to": "a@b", "from": "c"}), "filter.from is unknown; expected `to` or `when`"),
        ("email", json!({"too": "a@b"}), "filter.too is unknown; expected `to` or `when`"),
        ("pubsub", json!({"topik": "t"}), "filter.topik is unknown; expected `topic` or `when`"),
        ("pubsub", json!({"topic": 5}), "filter.topic must be a string, not 5"),
    ] {
        let body =
            json!({"name": "t", "source": source, "filter": filter, "target": {"job": {"queue": "q", "kind": "k"}}});
        let response = api.post(TRIGGERS, body).await;
        assert_eq!((response.status.as_u16(), response.json()["detail"].as_str()), (422, Some(expected)), "{filter}");
    }
}

/// Requirement X10.
#[tokio::test]
async fn an_invalid_trigger_names_the_field() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let good = json!({"name": "t", "source": "kv", "filter": {"collection": "c"}, "target": {"job": {"queue": "q", "kind": "k"}}});
        let cases: Vec<(&str, Value, &str)> = vec![
            ("name", json!(""), "name"),
            ("source", json!("rss"), "source"),
            ("filter", json!({"collection": "a*b"}), "filter.collection"),
            ("filter", json!({"colection": "a"}), "filter.colection"),
            ("filter", json!({"ops": ["sett"]}), "filter.ops"),
            ("filter", json!({"when": "data.n >"}), "filter.when"),
            ("filter", json!({"when": "data.list * data.n"}), "filter.when"),
            ("filter", json!([]), "filter"),
            ("target", json!({}), "target"),
            ("target", json!({"jobs": {}}), "target.jobs"),
            ("target", json!({"job": ["q", "k"]}), "target.job"),
            ("target", json!({"job": {"kind": "k"}}), "target.job.queue"),
            ("target", json!({"job": {"queue": "a b", "kind": "k"}}), "target.job.queue"),
            ("target", json!({"job": {"queue": "q", "kind": "k", "process": "scrub"}}), "target.job.process"),
            ("target", json!({"job": {"queue": "q", "kind": "k", "priority": 1 << 20}}), "target.job.priority"),
            ("target", json!({"job": {"queue": "q", "kind": "k", "payload": "{{ data. }}"}}), "target.job.payload"),
            ("retry", json!({"max_attempts": 0}), "retry.max_attempts"),
            ("retry", json!({"exponent": 0.1}), "retry.exponent"),
            ("mode", json!("later"), "mode"),
            ("colour", json!("red"), "colour"),
        ];
        for (member, value, field) in cases {
            let mut body = good.clone();
            body[member] = value;
            let response = api.post(TRIGGERS, body.clone()).await;
            assert!(response.status.is_client_error(), "{body}");
            assert_eq!(response.json()["field"], field, "{body}: {:?}", response.body);
        }
        let cron = |filter: Value| json!({"name": "c", "source": "cron", "filter": filter, "target": good["target"]});
        for (filter, field) in [
            (json!({"schedule": "* *"}), "filter.schedule"),
            (json!({"schedule": "* * * * *", "timezone": "Mars"}), "filter.timezone"),
            (json!({"schedule": "* * * * *", "missed": "always"}), "filter.missed"),
        ] {
            api.post(TRIGGERS, cron(filter)).await.problem(422, "invalid_field", Some(field));
        }
        let waits = json!({"name": "w", "source": "cron", "filter": {"schedule": "* * * * *"}, "target": good["target"],
                           "mode": "sync"});
        api.post(TRIGGERS, waits).await.problem(422, "invalid_field", Some("mode"));
        let http = json!({"name": "h", "source": "http", "filter": {"secret": "hunter2"}, "target": good["target"]});
        api.post(TRIGGERS, http).await.problem(422, "invalid_field", Some("filter.secret"));
        assert_eq!(api.post(TRIGGERS, good.clone()).await.status, 201);
        api.send(json_request("POST", TRIGGERS, &good)).await.problem(409, "name_taken", Some("name"));
        assert_eq!(api.get(TRIGGERS).await.json()["items"].as_array().unwrap().len(), 1);
    })
    .await;
}
