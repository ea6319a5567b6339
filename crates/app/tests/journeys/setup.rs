//! `windlass apply` and `windlass export`: a file declares what a server has.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Map, Value, json};

use crate::support::{CommandOutput, Fixture, Server, on_both, windlass};

const SEED: u64 = 20_261_119;
const EDITS: usize = 12;

struct Setup<'a> {
    fixture: &'a Fixture,
    server: &'a Server,
}

impl Setup<'_> {
    async fn run(&self, args: &[&str]) -> CommandOutput {
        windlass(&[&["--url", &self.server.url, "--output", "json"], args].concat()).await
    }

    async fn apply(&self, file: &Value, flags: &[&str]) -> CommandOutput {
        let path = self.fixture.path("windlass.yaml");
        std::fs::write(&path, file.to_string()).expect("the file is written");
        let path = path.to_str().expect("the path is text");
        self.run(&[&["apply", "--file", path], flags].concat()).await
    }

    /// Applies a valid file. Returns the changes as `action name`.
    async fn applied(&self, file: &Value, flags: &[&str]) -> Vec<String> {
        let result = json_of(self.apply(file, flags).await);
        let change = |change: &Value| format!("{} {}", text(&change["action"]), text(&change["name"]));
        result["changes"].as_array().expect("a list").iter().map(change).collect()
    }

    async fn export(&self) -> Value {
        json_of(self.run(&["export"]).await)
    }
}

fn json_of(output: CommandOutput) -> Value {
    assert_eq!(output.code, Some(0), "{output:?}");
    serde_json::from_str(&output.stdout).expect("the output is JSON")
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

fn file() -> Value {
    json!({
        "queues": {"mail": {"concurrency": 4, "retry": {"initial_s": 30}}, "plain": {"retention_s": 60}},
        "processes": {"patch": {"selector": {"kind": "machine"}, "queue": "fleet", "kind": "patch"}},
        "triggers": {"nightly": {"source": "cron", "filter": {"schedule": "0 2 * * *"},
                                 "target": {"job": {"queue": "mail", "kind": "digest"}}}},
        "runtimes": {"llama": {"image": "registry.example.com/llama:1.2.3", "ports": [{"container": 8080}],
                               "env": {"KEY": "secret"}, "desired": "stopped"}},
        "pools": {"gpu": {"slots": 1, "members": [{"affinity": "llama", "runtime": "llama"}]}},
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_applied_once_and_then_changes_nothing() {
    on_both(async |fixture| {
        let server = Server::start(&fixture).await;
        let setup = Setup { fixture: &fixture, server: &server };
        let all = ["create llama", "create gpu", "create mail", "create plain", "create patch", "create nightly"];
        assert_eq!(setup.applied(&file(), &["--dry-run"]).await, all);
        assert_eq!(setup.export().await, json!({}), "a dry run changes nothing");
        assert_eq!(setup.applied(&file(), &[]).await, all);
        assert!(setup.applied(&file(), &["--prune"]).await.is_empty());

        let mut edited = file();
        edited["queues"]["mail"] = json!({"concurrency": 5});
        edited["triggers"]["nightly"]["filter"]["schedule"] = json!("0 3 * * *");
        let result = json_of(setup.apply(&edited, &["--dry-run"]).await);
        let differences: Vec<&Value> =
            result["changes"].as_array().expect("a list").iter().map(|change| &change["differences"]).collect();
        assert_eq!(differences[0][0], "concurrency: 4 → 5");
        assert!(text(&differences[0][1]).starts_with("retry: {") && text(&differences[0][1]).ends_with("→ default"));
        assert_eq!(differences[1], &json!(["filter.schedule: \"0 2 * * *\" → \"0 3 * * *\""]));
        assert_eq!(setup.applied(&edited, &[]).await, ["change mail", "change nightly"]);
        assert!(setup.applied(&edited, &[]).await.is_empty());

        // Only sections of the file are pruned.
        let fewer = json!({"queues": {"mail": {"concurrency": 5}}, "triggers": {}, "pools": {}, "runtimes": {}});
        let removed = ["reset plain", "delete nightly", "delete gpu", "delete llama"];
        let mut changes = setup.applied(&fewer, &["--prune"]).await;
        changes.sort();
        let mut expected = removed.map(str::to_owned).to_vec();
        expected.sort();
        assert_eq!(changes, expected);
        let exported = setup.export().await;
        let sections: Vec<&String> = exported.as_object().expect("an object").keys().collect();
        assert_eq!(sections, ["processes", "queues"]);
        assert_eq!(exported["queues"], json!({"mail": {"concurrency": 5}}));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exported_file_declares_an_equal_server() {
    on_both(async |fixture| {
        let server = Server::start(&fixture).await;
        let setup = Setup { fixture: &fixture, server: &server };
        setup.applied(&file(), &[]).await;
        let exported = setup.export().await;
        assert!(setup.applied(&exported, &["--prune"]).await.is_empty(), "{exported}");
        let elsewhere = Fixture::sqlite();
        let copy = Server::start(&elsewhere).await;
        let copy = Setup { fixture: &elsewhere, server: &copy };
        let mut without_secret = exported.clone();
        without_secret["runtimes"]["llama"]["env"] = json!({"KEY": "secret"});
        copy.applied(&without_secret, &[]).await;
        assert_eq!(copy.export().await, exported);
        let yaml = windlass(&["--url", &server.url, "export", "--section", "queues"]).await;
        assert!(yaml.stdout.starts_with("queues:\n  mail:\n    concurrency: 4\n"), "{yaml:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_created_once_and_never_changed_silently() {
    on_both(async |fixture| {
        let server = Server::start(&fixture).await;
        let create =
            ["token", "create", "--name", "root", "--role", "admin", "--database", &fixture.url].map(str::to_owned);
        let root = windlass(&create).await.stdout.trim().to_owned();
        let with_root = async |file: Value, flags: &[&str]| {
            let path = fixture.path("tokens.yaml");
            std::fs::write(&path, file.to_string()).expect("the file is written");
            let path = path.to_str().expect("the path is text");
            let global = ["--url", &server.url, "--token", &root, "--output", "json", "apply", "--file", path];
            windlass(&[&global[..], flags].concat()).await
        };
        let declared = json!({"tokens": {"ci": {"role": "producer", "queues": ["b", "a"]}}});
        let created = json_of(with_root(declared.clone(), &["--prune"]).await);
        assert_eq!(created["changes"].as_array().map(Vec::len), Some(1), "the admin token stays: {created}");
        let token = text(&created["tokens"]["ci"]).to_owned();
        let push = ["--url", &server.url, "--token", &token, "job", "push", "--queue", "a", "--kind", "k"];
        assert_eq!(windlass(&push).await.code, Some(0), "the token works");
        let again = json_of(with_root(declared, &["--prune"]).await);
        assert_eq!((&again["changes"], &again["tokens"]), (&json!([]), &json!({})));
        let changed = with_root(json!({"tokens": {"ci": {"role": "viewer"}}}), &[]).await;
        assert!(changed.code == Some(2) && changed.stderr.contains("windlass token revoke"), "{changed:?}");
        let revoked = json_of(with_root(json!({"tokens": {}}), &["--prune"]).await);
        assert_eq!(revoked["changes"][0]["action"], "revoke");
        assert_eq!(windlass(&push).await.code, Some(3), "the token is revoked");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_file_changes_nothing_and_names_the_place() {
    on_both(async |fixture| {
        let server = Server::start(&fixture).await;
        let setup = Setup { fixture: &fixture, server: &server };
        let bad = setup.apply(&json!({"queues": {"ok": {"concurrency": 1}, "mail": {"speed": 1}}}), &[]).await;
        assert!(bad.code == Some(2) && bad.stderr.contains("queues.mail: unknown field `speed`"), "{bad:?}");
        let refused = setup.apply(&json!({"queues": {"mail": {"concurrency": -1}}}), &[]).await;
        assert!(refused.code == Some(3) && refused.stderr.contains("queues.mail"), "{refused:?}");
        assert_eq!(setup.export().await, json!({}));
    })
    .await;
}

/// A random file: each object is absent, or has random settings.
fn random_file(random: &mut StdRng) -> Value {
    let mut sections: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    for section in ["queues", "processes", "triggers"] {
        let objects = sections.entry(section).or_default();
        for name in ["a", "b", "c"] {
            if random.random_bool(0.6) {
                objects.insert(name.to_owned(), random_settings(random, section));
            }
        }
    }
    json!(sections)
}

fn random_settings(random: &mut StdRng, section: &str) -> Value {
    let mut settings = match section {
        "queues" => json!({"retention_s": random.random_range(60..100)}),
        "processes" => json!({"selector": {"all": [{"fact": "os", "equals": random.random_range(0..3)}]}, "queue": "q",
                              "kind": "k"}),
        _ => json!({"source": "pubsub", "filter": {"topic": format!("t{}", random.random_range(0..3))},
                    "target": {"job": {"queue": "q", "kind": "k"}}}),
    };
    let mut maybe = |member: &str, value: Value| {
        if random.random_bool(0.5) {
            settings[member] = value;
        }
    };
    match section {
        "queues" => {
            maybe("concurrency", json!(3));
            maybe("rate_per_s", json!(2));
            maybe("retry", json!({"exponent": 3}));
            maybe("phases", json!(["warm-up"]));
            maybe("kinds", json!({"big": {"timeout_s": 60, "retry": {"initial_s": 1}}}));
        }
        "processes" => {
            maybe("max_active", json!(5));
            maybe("every_s", json!(120));
            maybe("excludes", json!(["other"]));
            maybe("backoff", json!({"initial_s": 60}));
            maybe("payload", json!({"a": [1, 2]}));
        }
        _ => {
            maybe("enabled", json!(false));
            maybe("retry", json!({"max_attempts": 7}));
        }
    }
    settings
}

#[tokio::test(flavor = "multi_thread")]
async fn random_edits_are_applied_exactly_and_once() {
    on_both(async |fixture| {
        let server = Server::start(&fixture).await;
        let setup = Setup { fixture: &fixture, server: &server };
        let mut random = StdRng::seed_from_u64(SEED);
        for edit in 0..EDITS {
            let file = random_file(&mut random);
            let planned = setup.applied(&file, &["--prune", "--dry-run"]).await;
            assert_eq!(setup.applied(&file, &["--prune"]).await, planned, "edit {edit}: {file}");
            assert!(setup.applied(&file, &["--prune"]).await.is_empty(), "edit {edit}: {file}");
            let exported = setup.export().await;
            for section in ["queues", "processes", "triggers"] {
                let names = |file: &Value| -> Vec<String> {
                    file[section].as_object().map(|objects| objects.keys().cloned().collect()).unwrap_or_default()
                };
                assert_eq!(names(&exported), names(&file), "edit {edit}: {section}");
            }
            assert!(setup.applied(&exported, &["--prune"]).await.is_empty(), "edit {edit}: {exported}");
        }
        fixture.verify().await;
    })
    .await;
}
