//! X7: TLS with the real program, a certificate that is replaced while it serves, and the refusal to listen to the world
//! without tokens.

use std::path::Path;
use std::sync::Arc;

use client::Client;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::support::{PATIENCE, Place, Serve, Server, Work, on_sqlite, refused, until, windlass, windlass_with};

const ONE: [&str; 2] = [include_str!("tls/one.crt"), include_str!("tls/one.key")];
const TWO: [&str; 2] = [include_str!("tls/two.crt"), include_str!("tls/two.key")];

fn put(folder: &Path, [certificate, key]: [&str; 2]) {
    std::fs::write(folder.join("tls.crt"), certificate).expect("the folder takes files");
    std::fs::write(folder.join("tls.key"), key).expect("the folder takes files");
}

/// A client that trusts this certificate and no other.
fn trusting(url: &str, certificate: &str, token: &str) -> Client {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(certificate.as_bytes()).expect("PEM")).expect("a certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring supports them")
        .with_root_certificates(roots)
        .with_no_client_auth();
    // Agreeing on TLS is a part of connecting.
    let builder = Client::builder(url).connect_timeout(PATIENCE).timeout(PATIENCE);
    builder.tls(config).token(token).build().expect("the address is valid")
}

async fn admin_token(place: &Place) -> String {
    // Where no server was yet.
    windlass(&["migrate", "up", "--database", &place.url]).await;
    let args = ["token", "create", "--database", &place.url, "--role", "admin", "--name", "root"];
    windlass(&args).await.stdout.trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn x7_a_new_certificate_is_taken_without_a_restart() {
    on_sqlite(async |place| {
        let token = admin_token(&place).await;
        put(place.folder(), ONE);
        let server = Serve::on(&place)
            .env("WINDLASS_TLS_CERT", place.path("tls.crt"))
            .env("WINDLASS_TLS_KEY", place.path("tls.key"))
            .env("WINDLASS_LOG", "info")
            .start()
            .await;
        assert!(server.url.starts_with("https://"), "{}", server.url);
        trusting(&server.url, ONE[0], &token).queues(None).await.expect("the first certificate is shown");
        trusting(&server.url, TWO[0], &token).queues(None).await.expect_err("the second is not");
        put(place.folder(), TWO);
        until("the second certificate is shown", async || {
            trusting(&server.url, TWO[0], &token).queues(None).await.ok()
        })
        .await;
        let log = until("the log tells of it", async || {
            Some(server.program.stderr()).filter(|log| log.contains("certificate was read again"))
        })
        .await;
        assert!(!log.contains('\u{1b}'), "no colour in a file: {log}");
        // A pair that does not fit leaves the last good one. One may have been met already, half way between the two.
        let unfit = |log: &str| log.matches("the old one stays").count();
        put(place.folder(), [ONE[0], TWO[1]]);
        until("the pair was looked at", async || {
            trusting(&server.url, TWO[0], &token).queues(None).await.expect("the good pair stays");
            (unfit(&server.program.stderr()) > unfit(&log)).then_some(())
        })
        .await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn x7_the_command_line_and_workers_trust_an_authority_that_is_named() {
    on_sqlite(async |place| {
        let token = admin_token(&place).await;
        put(place.folder(), ONE);
        let [certificate, key] = ["tls.crt", "tls.key"].map(|name| place.path(name).display().to_string());
        // One half from a file, the other from the environment: together they are a pair.
        let file = place.path("windlass.toml");
        std::fs::write(&file, format!("tls_key = \"{key}\"")).expect("the folder takes files");
        let serve = Serve::on(&place).env("WINDLASS_TLS_CERT", &certificate).env("WINDLASS_CONFIG", &file);
        let server = serve.start().await;
        let list = ["--url", &server.url, "--token", &token, "queue", "list"];
        let trusting = [("WINDLASS_CA", certificate.as_str())];
        let stranger = windlass(&list).await;
        assert_eq!(stranger.code, Some(5), "{stranger:?}");
        // Agreeing on TLS may take longer than a busy machine gives a connection.
        until("the server is trusted", async || (windlass_with(&trusting, &list).await.code == Some(0)).then_some(()))
            .await;
        for wrong in [key.as_str(), "/no/such/file"] {
            let done = windlass(&[&["--ca", wrong], &list[..]].concat()).await;
            assert_eq!(done.code, Some(2), "{done:?}");
        }
        let _work = Work::start(&place, &server, "q", &["--ca", &certificate, "--token", &token], "echo 7");
        let push = ["--url", &server.url, "--token", &token, "job", "push", "--queue", "q", "--kind", "k", "--wait"];
        let result = until("a worker has answered", async || {
            let done = windlass_with(&trusting, &push).await;
            (done.code == Some(0)).then_some(done.stdout)
        })
        .await;
        assert_eq!(result.trim(), "7");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn x7_half_a_pair_for_tls_is_refused() {
    on_sqlite(async |place| {
        for (given, missing) in [("--tls-cert", "--tls-key"), ("--tls-key", "--tls-cert")] {
            let args = ["--database", &place.url, "--listen", "127.0.0.1:0", given, "tls.pem"];
            let done = refused(place.folder(), &args).await;
            assert_eq!(done.code, Some(2), "{done:?}");
            assert!(done.stderr.contains(&format!("needs its {missing}")), "{done:?}");
        }
    })
    .await;
}

/// The cookie that signing in gives, whole, on a page that the browser knows under this origin.
async fn cookie(server: &Server, token: &str, origin: &str) -> String {
    // The program's own client names its provider; this one takes the default of the process, which may be set already.
    let _set = rustls::crypto::ring::default_provider().install_default();
    let pages = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none());
    let form = pages.build().expect("an HTTP client").post(format!("{}/sign-in", server.url));
    let form = form.header("content-type", "application/x-www-form-urlencoded").header("origin", origin);
    let answer = form.body(format!("token={token}")).send().await.expect("an answer comes");
    answer.headers()["set-cookie"].to_str().expect("text").to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn x7_behind_a_proxy_that_speaks_tls_page_sessions_are_kept_to_tls() {
    on_sqlite(async |place| {
        let token = admin_token(&place).await;
        let mut plain = Serve::on(&place).env("WINDLASS_PUBLIC_URL", "http://windlass.example").start().await;
        assert!(!cookie(&plain, &token, "http://windlass.example").await.contains("Secure"));
        plain.program.kill().await;
        let behind = Serve::on(&place).listen("0.0.0.0:0").env("WINDLASS_PUBLIC_URL", "HTTPS://windlass.example/jobs/");
        let behind = behind.start().await;
        let given = cookie(&behind, &token, "https://windlass.example").await;
        assert!(given.ends_with("; Secure") && given.contains("HttpOnly; SameSite=Lax"), "{given}");
        assert!(!behind.program.stderr().contains("TLS"), "nothing goes in the clear: {}", behind.program.stderr());
        let odd = ["--database", &place.url, "--public-url", "windlass.example"];
        assert_eq!(refused(place.folder(), &odd).await.code, Some(2));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn x7_it_does_not_listen_to_the_world_without_tokens() {
    on_sqlite(async |place| {
        let args = ["--database", &place.url, "--listen", "0.0.0.0:0"];
        let done = refused(place.folder(), &args).await;
        assert_eq!(done.code, Some(1), "{done:?}");
        assert!(done.stderr.contains("windlass token create"), "{done:?}");
        admin_token(&place).await;
        let server = Serve::on(&place).listen("0.0.0.0:0").start().await;
        assert!(server.program.stderr().contains("TLS"), "it says that tokens go in the clear");
    })
    .await;
}
