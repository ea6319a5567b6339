//! X7: secrets at rest with the real program. Canaries are used for what they are for, and then looked for in every place
//! where they must not be: the database's files and its log, a backup, the program's own log, its answers.

use std::path::Path;

use engine::outbound::sign;
use serde_json::{Value, json};
use testkit::receiver::{Manner, Receiver, Seen};

use crate::support::{Cluster, Place, Serve, Server, http, refused, until, windlass};

/// Whole and in 24 bytes, so that no padding differs between what encodes it and what is looked for.
fn canary(what: &str) -> String {
    use base64::Engine;
    let key = format!("{what:-<24}");
    assert_eq!(key.len(), 24);
    format!("whsec_{}", base64::engine::general_purpose::STANDARD.encode(key))
}

/// Every form in which a secret could be found.
fn forms(secret: &str) -> Vec<String> {
    let bare = secret.trim_start_matches("whsec_").trim_start_matches("windlass_");
    let mut forms = vec![secret.to_owned(), bare.to_owned()];
    forms.extend(sign::key(secret).and_then(|key| String::from_utf8(key).ok()));
    forms
}

/// The files under the folder in which one of these is found.
fn found_in(folder: &Path, needles: &[String], looked_at: &mut usize) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("the folder can be read").flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(found_in(&path, needles, looked_at));
        } else if let Ok(bytes) = std::fs::read(&path) {
            *looked_at += 1;
            // What is no text becomes a mark; the secrets are plain ASCII and stay whole. Texts are searched much faster.
            let text = String::from_utf8_lossy(&bytes);
            let hit = needles.iter().find(|needle| text.contains(needle.as_str()));
            found.extend(hit.map(|needle| format!("{}: {needle}", path.display())));
        }
    }
    found
}

/// A person with a token, and everything they were answered.
struct Person {
    url: String,
    token: String,
    heard: Vec<u8>,
}

impl Person {
    async fn ask(&mut self, method: &str, path: &str, body: Option<Value>) -> Value {
        let method = method.parse().expect("a method");
        let mut request = http().request(method, format!("{}{path}", self.url)).bearer_auth(&self.token);
        if let Some(body) = &body {
            request = request.json(body);
        }
        let answer = request.send().await.expect("an answer comes");
        let status = answer.status();
        let bytes = answer.bytes().await.expect("it is whole");
        self.heard.extend(&bytes);
        assert!(status.is_success(), "{path}: {status} {}", String::from_utf8_lossy(&bytes));
        serde_json::from_slice(&bytes).unwrap_or_default()
    }

    /// Makes the job and calls it off, which owes its webhook a request. Gives its id.
    async fn call_off(&mut self, body: Value) -> String {
        let job = self.ask("POST", "/api/v1/jobs", Some(body)).await;
        let id = job["id"].as_str().expect("a job has an id").to_owned();
        self.ask("POST", &format!("/api/v1/jobs/{id}/cancel"), None).await;
        self.ask("GET", &format!("/api/v1/jobs/{id}"), None).await;
        id
    }
}

fn is_signed_with(seen: &Seen, secret: &str) -> bool {
    let (Some(id), Some(time)) = (seen.header("webhook-id"), seen.header("webhook-timestamp")) else { return false };
    let time = time.parse().expect("a time");
    seen.header("webhook-signature") == sign::signature(&[secret.to_owned()], id, time, &seen.body).as_deref()
}

/// Waits for a request that tells of the job and is signed with the secret. Requests are not counted: one whose answer was
/// late comes again.
async fn heard_of(receiver: &Receiver, job: &str, secret: &str) {
    until("the receiver hears of the job", async || {
        receiver.seen().iter().any(|seen| seen.body.contains(job) && is_signed_with(seen, secret)).then_some(())
    })
    .await;
}

async fn token(place: &Place) -> String {
    let args = ["token", "create", "--database", &place.url, "--role", "admin", "--name", "root"];
    windlass(&args).await.stdout.trim().to_owned()
}

/// Uses a secret of each kind through the program and gives them all.
async fn use_secrets(place: &Place, receiver: &Receiver, server: &Server) -> (Person, Vec<String>) {
    let token = token(place).await;
    let mut person = Person { url: server.url.clone(), token: token.clone(), heard: Vec::new() };
    let [queue, job, hook, target, template] = ["queue", "job", "hook", "target", "template"].map(canary);
    let [header, environment] = ["header", "environment"].map(canary);
    let spec = json!({"image": "example/model:1.2.3", "env": {"TOKEN": environment}});
    person.ask("PUT", "/api/v1/runtimes/model", Some(spec)).await;
    person.ask("GET", "/api/v1/runtimes/model", None).await;
    let url = receiver.url();
    let webhook = |secret: &str| json!({"url": url, "secret": secret});
    person.ask("PUT", "/api/v1/queues/hooked", Some(json!({"webhook": webhook(&queue)}))).await;
    person.call_off(json!({"queue": "hooked", "kind": "k"})).await;
    person.call_off(json!({"queue": "own", "kind": "k", "webhook": webhook(&job)})).await;
    let target = json!({"name": "calls", "source": "http", "filter": {"secret": hook},
                        "target": {"http": {"url": url, "secret": target, "headers": {"authorization": header}}}});
    let trigger = person.ask("POST", "/api/v1/triggers", Some(target.clone())).await;
    let made = json!({"queue": "made", "kind": "k", "webhook": webhook(&template)});
    let template_of = json!({"name": "makes", "source": "pubsub", "filter": {"topic": "t"}, "target": {"job": made}});
    person.ask("POST", "/api/v1/triggers", Some(template_of)).await;
    person.ask("POST", "/api/v1/topics/t", Some(json!({"n": 1}))).await;
    call_hook(&trigger, server, &hook).await;
    let target = target["target"]["http"]["secret"].as_str().expect("it was given").to_owned();
    let job_made = until("the trigger has made its job", async || {
        let page = person.ask("GET", "/api/v1/jobs?queue=made", None).await;
        page["items"][0]["id"].as_str().map(str::to_owned)
    })
    .await;
    person.ask("POST", &format!("/api/v1/jobs/{job_made}/cancel"), None).await;
    for secret in [&queue, &job, &target, &template] {
        until(&format!("{secret} signs what it is for"), async || {
            receiver.seen().iter().any(|seen| is_signed_with(seen, secret)).then_some(())
        })
        .await;
    }
    let has_header = |seen: &Seen| is_signed_with(seen, &target) && seen.header("authorization") == Some(&*header);
    assert!(receiver.seen().iter().any(has_header), "the receiver gets what the header says");
    // What a page session is known by is as good as a token.
    let form = format!("token={token}");
    let to_no_other_page = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none());
    let pages = to_no_other_page.build().expect("an HTTP client");
    let form = pages.post(format!("{}/sign-in", server.url)).body(form);
    let form = form.header("content-type", "application/x-www-form-urlencoded");
    let answer = form.send().await.expect("an answer comes");
    let cookie = answer.headers()["set-cookie"].to_str().expect("text").to_owned();
    let session = cookie.split(['=', '.']).nth(1).expect("the cookie has a value").to_owned();
    (person, vec![queue, job, hook, target, template, header, environment, token, session])
}

async fn call_hook(trigger: &Value, server: &Server, secret: &str) {
    let now = jiff::Timestamp::now().as_second();
    let signature = sign::signature(&[secret.to_owned()], "m1", now, "{}").expect("it signs");
    let path = trigger["hook"].as_str().expect("it is a hook");
    let call = http().post(format!("{}{path}", server.url)).header("content-type", "application/json").body("{}");
    let call = call.header("webhook-id", "m1").header("webhook-timestamp", now).header("webhook-signature", signature);
    assert_eq!(call.send().await.expect("an answer comes").status(), 202);
}

/// Everything that can be asked for without an id.
async fn ask_everything(person: &mut Person) {
    let document = person.ask("GET", "/openapi.json", None).await;
    let paths = document["paths"].as_object().expect("there are paths");
    for (path, item) in paths.iter().filter(|(path, _)| !path.contains('{') && !path.ends_with("/stream")) {
        if item.get("get").is_some() && !path.ends_with("/ttfs/summary") {
            person.ask("GET", path, None).await;
        }
    }
    for noun in ["triggers", "deliveries"] {
        let page = person.ask("GET", &format!("/api/v1/{noun}"), None).await;
        let ids = page["items"].as_array().expect("a page has items").iter().filter_map(|item| item["id"].as_str());
        for id in ids.filter(|_| noun == "triggers") {
            person.ask("GET", &format!("/api/v1/{noun}/{id}"), None).await;
        }
    }
}

/// Uses the secrets, rotates the key beside the server, uses them again, and looks for them everywhere.
async fn check(place: &Place, database: &Path) {
    let receiver = Receiver::start(Manner::Answer(200)).await;
    let serve = || Serve::on(place).env("WINDLASS_ALLOW_PRIVATE", "true").env("WINDLASS_LOG", "debug");
    let mut server = serve().start().await;
    let (mut person, canaries) = use_secrets(place, &receiver, &server).await;
    ask_everything(&mut person).await;

    let key_file = place.path("data").join("secret.key");
    let before = std::fs::read(&key_file).expect("the key file was made");
    let rotate = ["secret", "rotate", "--database", &place.url, "--secret-key-file", key_file.to_str().expect("text")];
    let rotated = windlass(&rotate).await;
    assert_eq!(rotated.code, Some(0), "{rotated:?}");
    assert_ne!(std::fs::read(&key_file).expect("the key file is there"), before);
    let job = person.call_off(json!({"queue": "hooked", "kind": "k"})).await;
    heard_of(&receiver, &job, &canaries[0]).await;
    assert_eq!(server.program.terminate().await, Some(0));
    // A process that starts now has only the new key, and opens what was sealed before it.
    let mut again = serve().start().await;
    person.url = again.url.clone();
    let job = person.call_off(json!({"queue": "hooked", "kind": "k"})).await;
    heard_of(&receiver, &job, &canaries[0]).await;

    if !place.is_postgres() {
        let copy = place.path("copy.db");
        let backup = ["backup", copy.to_str().expect("text"), "--database", &place.url];
        let made = windlass(&backup).await;
        assert_eq!(made.code, Some(0), "a backup is among what is searched: {made:?}");
    }
    let needles: Vec<String> = canaries.iter().flat_map(|canary| forms(canary)).collect();
    let answers = String::from_utf8_lossy(&person.heard);
    let heard: Vec<_> = needles.iter().filter(|needle| answers.contains(needle.as_str())).collect();
    assert!(heard.is_empty(), "in answers: {heard:?}");
    let search = |when: &str| {
        let mut looked_at = 0;
        let mut found = found_in(place.folder(), &needles, &mut looked_at);
        found.extend(found_in(database, &needles, &mut looked_at));
        assert_eq!(found, Vec::<String>::new(), "{when}");
        assert!(looked_at > 5, "{when} {looked_at} files were looked at");
    };
    search("while it serves");
    again.program.kill().await;
    search("after a kill");

    // Without its key the server says so at once, and makes no other.
    std::fs::rename(&key_file, place.path("elsewhere.key")).expect("the key can be moved");
    let data = place.path("data");
    let args = ["--database", &place.url, "--listen", "127.0.0.1:0", "--data-dir", data.to_str().expect("text")];
    let done = refused(place.folder(), &args).await;
    assert!(done.stderr.contains("secret-key-file") && !key_file.exists(), "{done:?}");
    let elsewhere = place.path("elsewhere.key");
    let mut found = serve().env("WINDLASS_SECRET_KEY_FILE", &elsewhere).start().await;
    assert_eq!(found.program.terminate().await, Some(0));
    let reset = ["secret", "reset", "--yes", "--database", &place.url, "--data-dir", data.to_str().expect("text")];
    assert_eq!(windlass(&reset).await.code, Some(0));
    let _given_up = serve().start().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn x7_no_canary_is_found_in_a_sqlite_file_its_log_our_log_or_an_answer() {
    let place = Place::sqlite();
    check(&place, place.folder()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn x7_no_canary_is_found_in_the_files_of_postgresql_its_log_our_log_or_an_answer() {
    let cluster = Cluster::start().await;
    let place = Place::on_server(&cluster.url()).await;
    check(&place, &cluster.data()).await;
}
