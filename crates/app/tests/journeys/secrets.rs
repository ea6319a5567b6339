//! Secrets at rest with the real binary. The test uses canary secrets for their purpose and then searches for them in
//! every place that must not contain them: the database's files, its log, a backup, the program's log and its
//! responses.

use std::path::Path;

use engine::outbound::sign;
use serde_json::{Value, json};
use testkit::receiver::{Behavior, ReceivedRequest, Receiver};

use crate::support::{Cluster, Fixture, Serve, Server, eventually, failed_start, http, windlass};

/// A secret of 24 bytes, so that its base64 form has no padding, which encoders treat differently.
fn canary(what: &str) -> String {
    use base64::Engine;
    let key = format!("{what:-<24}");
    assert_eq!(key.len(), 24);
    format!("whsec_{}", base64::engine::general_purpose::STANDARD.encode(key))
}

/// The forms in which a secret can appear.
fn forms(secret: &str) -> Vec<String> {
    let bare = secret.trim_start_matches("whsec_").trim_start_matches("windlass_");
    let mut forms = vec![secret.to_owned(), bare.to_owned()];
    forms.extend(sign::key(secret).and_then(|key| String::from_utf8(key).ok()));
    forms
}

/// Returns the files below the folder that contain one of the needles.
fn found_in(folder: &Path, needles: &[String], files: &mut usize) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("the folder can be read").flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(found_in(&path, needles, files));
        } else if let Ok(bytes) = std::fs::read(&path) {
            *files += 1;
            // The secrets are ASCII and survive the lossy conversion. A search in text is much faster than one in
            // bytes.
            let text = String::from_utf8_lossy(&bytes);
            let hit = needles.iter().find(|needle| text.contains(needle.as_str()));
            found.extend(hit.map(|needle| format!("{}: {needle}", path.display())));
        }
    }
    found
}

/// A client with a token that stores everything it receives.
struct Person {
    url: String,
    token: String,
    received: Vec<u8>,
}

impl Person {
    async fn request(&mut self, method: &str, path: &str, body: Option<Value>) -> Value {
        let method = method.parse().expect("a method");
        let mut request = http().request(method, format!("{}{path}", self.url)).bearer_auth(&self.token);
        if let Some(body) = &body {
            request = request.json(body);
        }
        let response = request.send().await.expect("the server responds");
        let status = response.status();
        let bytes = response.bytes().await.expect("the body is complete");
        self.received.extend(&bytes);
        assert!(status.is_success(), "{path}: {status} {}", String::from_utf8_lossy(&bytes));
        serde_json::from_slice(&bytes).unwrap_or_default()
    }

    /// Enqueues and cancels a job, which sends a request to its webhook. Returns the job's id.
    async fn cancel_job(&mut self, body: Value) -> String {
        let job = self.request("POST", "/api/v1/jobs", Some(body)).await;
        let id = job["id"].as_str().expect("a job has an id").to_owned();
        self.request("POST", &format!("/api/v1/jobs/{id}/cancel"), None).await;
        self.request("GET", &format!("/api/v1/jobs/{id}"), None).await;
        id
    }
}

fn is_signed_with(seen: &ReceivedRequest, secret: &str) -> bool {
    let (Some(id), Some(time)) = (seen.header("webhook-id"), seen.header("webhook-timestamp")) else { return false };
    let time = time.parse().expect("a time");
    seen.header("webhook-signature") == sign::signature(&[secret.to_owned()], id, time, &seen.body).as_deref()
}

/// Waits for a request about the job that is signed with the secret. Requests are not counted, because a request whose
/// response was late is sent again.
async fn wait_for_signed_request(receiver: &Receiver, job: &str, secret: &str) {
    eventually("the receiver gets the request", async || {
        receiver.requests().iter().any(|seen| seen.body.contains(job) && is_signed_with(seen, secret)).then_some(())
    })
    .await;
}

async fn token(fixture: &Fixture) -> String {
    let args = ["token", "create", "--database", &fixture.url, "--role", "admin", "--name", "root"];
    windlass(&args).await.stdout.trim().to_owned()
}

/// Uses a secret of each kind and returns all of them.
async fn use_secrets(fixture: &Fixture, receiver: &Receiver, server: &Server) -> (Person, Vec<String>) {
    let token = token(fixture).await;
    let mut person = Person { url: server.url.clone(), token: token.clone(), received: Vec::new() };
    let [queue, job, hook, target, template] = ["queue", "job", "hook", "target", "template"].map(canary);
    let [header, environment] = ["header", "environment"].map(canary);
    let spec = json!({"image": "example/model:1.2.3", "env": {"TOKEN": environment}});
    person.request("PUT", "/api/v1/runtimes/model", Some(spec)).await;
    person.request("GET", "/api/v1/runtimes/model", None).await;
    let url = receiver.url();
    let webhook = |secret: &str| json!({"url": url, "secret": secret});
    person.request("PUT", "/api/v1/queues/hooked", Some(json!({"webhook": webhook(&queue)}))).await;
    person.cancel_job(json!({"queue": "hooked", "kind": "k"})).await;
    person.cancel_job(json!({"queue": "own", "kind": "k", "webhook": webhook(&job)})).await;
    let target = json!({"name": "calls", "source": "http", "filter": {"secret": hook},
                        "target": {"http": {"url": url, "secret": target, "headers": {"authorization": header}}}});
    let trigger = person.request("POST", "/api/v1/triggers", Some(target.clone())).await;
    let created = json!({"queue": "made", "kind": "k", "webhook": webhook(&template)});
    let template_of =
        json!({"name": "makes", "source": "pubsub", "filter": {"topic": "t"}, "target": {"job": created}});
    person.request("POST", "/api/v1/triggers", Some(template_of)).await;
    person.request("POST", "/api/v1/topics/t", Some(json!({"n": 1}))).await;
    call_hook(&trigger, server, &hook).await;
    let target = target["target"]["http"]["secret"].as_str().expect("the target has a secret").to_owned();
    let created = eventually("the trigger has created its job", async || {
        let page = person.request("GET", "/api/v1/jobs?queue=made", None).await;
        page["items"][0]["id"].as_str().map(str::to_owned)
    })
    .await;
    person.request("POST", &format!("/api/v1/jobs/{created}/cancel"), None).await;
    for secret in [&queue, &job, &target, &template] {
        eventually(&format!("{secret} signs a request"), async || {
            receiver.requests().iter().any(|seen| is_signed_with(seen, secret)).then_some(())
        })
        .await;
    }
    let has_header =
        |seen: &ReceivedRequest| is_signed_with(seen, &target) && seen.header("authorization") == Some(&*header);
    assert!(receiver.requests().iter().any(has_header), "the receiver gets the header");
    // A session cookie grants the same access as a token.
    let form = format!("token={token}");
    let no_redirects = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none());
    let pages = no_redirects.build().expect("an HTTP client");
    let form = pages.post(format!("{}/sign-in", server.url)).body(form);
    let form = form.header("content-type", "application/x-www-form-urlencoded");
    let response = form.send().await.expect("the server responds");
    let cookie = response.headers()["set-cookie"].to_str().expect("a header is text").to_owned();
    let session = cookie.split(['=', '.']).nth(1).expect("the cookie has a value").to_owned();
    (person, vec![queue, job, hook, target, template, header, environment, token, session])
}

async fn call_hook(trigger: &Value, server: &Server, secret: &str) {
    let now = jiff::Timestamp::now().as_second();
    let signature = sign::signature(&[secret.to_owned()], "m1", now, "{}").expect("the secret signs");
    let path = trigger["hook"].as_str().expect("the trigger has a hook");
    let call = http().post(format!("{}{path}", server.url)).header("content-type", "application/json").body("{}");
    let call = call.header("webhook-id", "m1").header("webhook-timestamp", now).header("webhook-signature", signature);
    assert_eq!(call.send().await.expect("the server responds").status(), 202);
}

/// Requests every resource that needs no id, and every trigger.
async fn request_everything(person: &mut Person) {
    let document = person.request("GET", "/openapi.json", None).await;
    let paths = document["paths"].as_object().expect("the document has paths");
    for (path, item) in paths.iter().filter(|(path, _)| !path.contains('{') && !path.ends_with("/stream")) {
        if item.get("get").is_some() && !path.ends_with("/ttfs/summary") {
            person.request("GET", path, None).await;
        }
    }
    for noun in ["triggers", "deliveries"] {
        let page = person.request("GET", &format!("/api/v1/{noun}"), None).await;
        let ids = page["items"].as_array().expect("a page has items").iter().filter_map(|item| item["id"].as_str());
        for id in ids.filter(|_| noun == "triggers") {
            person.request("GET", &format!("/api/v1/{noun}/{id}"), None).await;
        }
    }
}

/// Uses the secrets, rotates the key while the server runs, uses them again, and searches for them everywhere.
async fn check(fixture: &Fixture, database: &Path) {
    let receiver = Receiver::start(Behavior::Respond(200)).await;
    let serve = || Serve::on(fixture).env("WINDLASS_ALLOW_PRIVATE", "true").env("WINDLASS_LOG", "debug");
    let mut server = serve().start().await;
    let (mut person, canaries) = use_secrets(fixture, &receiver, &server).await;
    request_everything(&mut person).await;

    let key_file = fixture.path("data").join("secret.key");
    let before = std::fs::read(&key_file).expect("the server created the key file");
    let rotate =
        ["secret", "rotate", "--database", &fixture.url, "--secret-key-file", key_file.to_str().expect("text")];
    let rotated = windlass(&rotate).await;
    assert_eq!(rotated.code, Some(0), "{rotated:?}");
    assert_ne!(std::fs::read(&key_file).expect("the key file exists"), before);
    let job = person.cancel_job(json!({"queue": "hooked", "kind": "k"})).await;
    wait_for_signed_request(&receiver, &job, &canaries[0]).await;
    assert_eq!(server.program.terminate().await, Some(0));
    // A new process has only the new key and decrypts secrets that were sealed with the old one.
    let mut again = serve().start().await;
    person.url = again.url.clone();
    let job = person.cancel_job(json!({"queue": "hooked", "kind": "k"})).await;
    wait_for_signed_request(&receiver, &job, &canaries[0]).await;

    if !fixture.is_postgres() {
        let copy = fixture.path("copy.db");
        let backup = ["backup", copy.to_str().expect("text"), "--database", &fixture.url];
        let made = windlass(&backup).await;
        assert_eq!(made.code, Some(0), "the search includes a backup: {made:?}");
    }
    let needles: Vec<String> = canaries.iter().flat_map(|canary| forms(canary)).collect();
    let received = String::from_utf8_lossy(&person.received);
    let leaked: Vec<_> = needles.iter().filter(|needle| received.contains(needle.as_str())).collect();
    assert!(leaked.is_empty(), "in responses: {leaked:?}");
    let search = |when: &str| {
        let mut files = 0;
        let mut found = found_in(fixture.folder(), &needles, &mut files);
        found.extend(found_in(database, &needles, &mut files));
        assert_eq!(found, Vec::<String>::new(), "{when}");
        assert!(files > 5, "{when}: only {files} files were searched");
    };
    search("while the server runs");
    again.program.kill().await;
    search("after a kill");

    // Without its key the server refuses to start and creates no other key.
    std::fs::rename(&key_file, fixture.path("elsewhere.key")).expect("renames the file");
    let data = fixture.path("data");
    let args = ["--database", &fixture.url, "--listen", "127.0.0.1:0", "--data-dir", data.to_str().expect("text")];
    let output = failed_start(fixture.folder(), &args).await;
    assert!(output.stderr.contains("secret-key-file") && !key_file.exists(), "{output:?}");
    let elsewhere = fixture.path("elsewhere.key");
    let mut found = serve().env("WINDLASS_SECRET_KEY_FILE", &elsewhere).start().await;
    assert_eq!(found.program.terminate().await, Some(0));
    let reset = ["secret", "reset", "--yes", "--database", &fixture.url, "--data-dir", data.to_str().expect("text")];
    assert_eq!(windlass(&reset).await.code, Some(0));
    let _after_reset = serve().start().await;
}

/// Requirement X7.
#[tokio::test(flavor = "multi_thread")]
async fn no_secret_leaks_into_a_sqlite_file_a_log_or_a_response() {
    let fixture = Fixture::sqlite();
    check(&fixture, fixture.folder()).await;
}

/// Requirement X7.
#[tokio::test(flavor = "multi_thread")]
async fn no_secret_leaks_into_postgres_files_a_log_or_a_response() {
    let cluster = Cluster::start().await;
    let fixture = Fixture::on_server(&cluster.url()).await;
    check(&fixture, &cluster.data()).await;
}
