//! What is told of a trigger that cannot be taken (X10).

use serde_json::{Value, json};
use testkit::{Database, on_both};

use crate::api::{Api, json_request};
use crate::triggers::TRIGGERS;

#[tokio::test]
async fn x10_a_malformed_target_is_told_in_the_words_of_the_api() {
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
        (json!({"jobs": {}}), format!("target.jobs is not known; expected {kinds}")),
        (json!({"job": "q"}), "target.job must be an object".into()),
        (json!({"job": {"queue": "q"}}), "target.job.kind is missing".into()),
        (json!({"script": 5}), "target.script must be a string: the text of the script".into()),
        (json!({"http": {"url": 5}}), "target.http.url must be a string, not 5".into()),
        (
            json!({"http": {"url": "https://example.com", "headers": {"a": true}}}),
            "target.http.headers.a must be a string, not true".into(),
        ),
        (json!({"runtime": {"name": "llama"}}), "target.runtime.operation is missing".into()),
        (job(json!({"queue": 5})), "target.job.queue must be a string, not 5".into()),
        (job(json!({"priority": "high"})), "target.job.priority must be a whole number, not a string".into()),
        (job(json!({"retry": "often"})), "target.job.retry must be an object, not a string".into()),
        (
            job(json!({"retry": {"initial_s": -1}})),
            "target.job.retry.initial_s must be a whole number from 0 on, not -1".into(),
        ),
        (job(json!({"tags": "a"})), "target.job.tags must be a list, not a string".into()),
        (job(json!({"webhook": "https://example.com"})), "target.job.webhook must be an object, not a string".into()),
        (job(json!({"webhook": {}})), "target.job.webhook.url is missing".into()),
        (
            job(json!({"retry": {"often": true}})),
            "target.job.retry.often is not known; expected one of `initial_s`, `maximum_s`, `exponent`, `jitter`"
                .into(),
        ),
    ];
    for (target, expected) in cases {
        let body = json!({"name": "t", "source": "kv", "target": target});
        let answer = api.post(TRIGGERS, body).await;
        assert_eq!((answer.status.as_u16(), answer.json()["detail"].as_str()), (422, Some(&*expected)), "{target}");
    }
}

#[tokio::test]
async fn x10_a_filter_with_a_member_that_is_not_known_names_those_that_are() {
    let api = Api::new(Database::sqlite().await).await;
    for (source, filter, expected) in [
        ("dead_letter", json!({"sorce": "job"}), "filter.sorce is not known; expected `source` or `when`"),
        ("dead_letter", json!({"queue": "q"}), "filter.queue is not known; expected `source` or `when`"),
        ("email", json!({"to": "a@b", "from": "c"}), "filter.from is not known; expected `to` or `when`"),
        ("email", json!({"too": "a@b"}), "filter.too is not known; expected `to` or `when`"),
        ("pubsub", json!({"topik": "t"}), "filter.topik is not known; expected `topic` or `when`"),
        ("pubsub", json!({"topic": 5}), "filter.topic must be a string, not 5"),
    ] {
        let body =
            json!({"name": "t", "source": source, "filter": filter, "target": {"job": {"queue": "q", "kind": "k"}}});
        let answer = api.post(TRIGGERS, body).await;
        assert_eq!((answer.status.as_u16(), answer.json()["detail"].as_str()), (422, Some(expected)), "{filter}");
    }
}

#[tokio::test]
async fn x10_a_trigger_that_cannot_be_taken_names_its_field() {
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
            let answer = api.post(TRIGGERS, body.clone()).await;
            assert!(answer.status.is_client_error(), "{body}");
            assert_eq!(answer.json()["field"], field, "{body}: {:?}", answer.body);
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
        api.ask(json_request("POST", TRIGGERS, &good)).await.problem(409, "name_taken", Some("name"));
        assert_eq!(api.get(TRIGGERS).await.json()["items"].as_array().unwrap().len(), 1);
    })
    .await;
}
