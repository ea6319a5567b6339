//! TLS with the real binary: a certificate that is replaced while the server runs, a proxy that terminates TLS, and the
//! refusal to listen on a public address without tokens.

use std::path::Path;
use std::sync::Arc;

use client::Client;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::support::{
    Fixture, Serve, Server, TIMEOUT, Work, eventually, failed_start, on_sqlite, windlass, windlass_with,
};

const ONE: [&str; 2] = [include_str!("tls/one.crt"), include_str!("tls/one.key")];
const TWO: [&str; 2] = [include_str!("tls/two.crt"), include_str!("tls/two.key")];

fn put(folder: &Path, [certificate, key]: [&str; 2]) {
    std::fs::write(folder.join("tls.crt"), certificate).expect("writes the file");
    std::fs::write(folder.join("tls.key"), key).expect("writes the file");
}

/// A client that trusts only this certificate.
fn trusting(url: &str, certificate: &str, token: &str) -> Client {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(certificate.as_bytes()).expect("PEM")).expect("a certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring supports them")
        .with_root_certificates(roots)
        .with_no_client_auth();
    // The TLS handshake counts as connecting.
    let builder = Client::builder(url).connect_timeout(TIMEOUT).timeout(TIMEOUT);
    builder.tls(config).token(token).build().expect("the address is valid")
}

async fn admin_token(fixture: &Fixture) -> String {
    // No server has created the schema yet.
    windlass(&["migrate", "up", "--database", &fixture.url]).await;
    let args = ["token", "create", "--database", &fixture.url, "--role", "admin", "--name", "root"];
    windlass(&args).await.stdout.trim().to_owned()
}

/// Requirement X7.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_certificate_is_loaded_without_a_restart() {
    on_sqlite(async |fixture| {
        let token = admin_token(&fixture).await;
        put(fixture.folder(), ONE);
        let server = Serve::on(&fixture)
            .env("WINDLASS_TLS_CERT", fixture.path("tls.crt"))
            .env("WINDLASS_TLS_KEY", fixture.path("tls.key"))
            .env("WINDLASS_LOG", "info")
            .start()
            .await;
        assert!(server.url.starts_with("https://"), "{}", server.url);
        trusting(&server.url, ONE[0], &token).queues(None).await.expect("the first certificate is shown");
        trusting(&server.url, TWO[0], &token).queues(None).await.expect_err("the second certificate is not shown");
        put(fixture.folder(), TWO);
        eventually("the second certificate is shown", async || {
            trusting(&server.url, TWO[0], &token).queues(None).await.ok()
        })
        .await;
        let log = eventually("the reload is logged", async || {
            Some(server.program.stderr()).filter(|log| log.contains("reloaded the TLS certificate"))
        })
        .await;
        assert!(!log.contains('\u{1b}'), "no colors in a file: {log}");
        // An invalid pair is ignored. The server may have logged one already, if it read between the two writes above.
        let rejections = |log: &str| log.matches("keeping the old one").count();
        put(fixture.folder(), [ONE[0], TWO[1]]);
        eventually("the pair is rejected", async || {
            trusting(&server.url, TWO[0], &token).queues(None).await.expect("the old certificate stays in use");
            (rejections(&server.program.stderr()) > rejections(&log)).then_some(())
        })
        .await;
    })
    .await;
}

/// Requirement X7.
#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_and_workers_trust_a_configured_authority() {
    on_sqlite(async |fixture| {
        let token = admin_token(&fixture).await;
        put(fixture.folder(), ONE);
        let [certificate, key] = ["tls.crt", "tls.key"].map(|name| fixture.path(name).display().to_string());
        // One setting in a file and the other in the environment form a pair.
        let file = fixture.path("windlass.toml");
        std::fs::write(&file, format!("tls_key = \"{key}\"")).expect("writes the file");
        let serve = Serve::on(&fixture).env("WINDLASS_TLS_CERT", &certificate).env("WINDLASS_CONFIG", &file);
        let server = serve.start().await;
        let list = ["--url", &server.url, "--token", &token, "queue", "list"];
        let trusting = [("WINDLASS_CA", certificate.as_str())];
        let untrusted = windlass(&list).await;
        assert_eq!(untrusted.code, Some(5), "{untrusted:?}");
        // On a busy machine the TLS handshake can exceed the connect timeout.
        eventually("the server is trusted", async || {
            (windlass_with(&trusting, &list).await.code == Some(0)).then_some(())
        })
        .await;
        for wrong in [key.as_str(), "/no/such/file"] {
            let output = windlass(&[&["--ca", wrong], &list[..]].concat()).await;
            assert_eq!(output.code, Some(2), "{output:?}");
        }
        let _work = Work::start(&fixture, &server, "q", &["--ca", &certificate, "--token", &token], "echo 7");
        let push = ["--url", &server.url, "--token", &token, "job", "push", "--queue", "q", "--kind", "k", "--wait"];
        let result = eventually("a worker has completed the job", async || {
            let output = windlass_with(&trusting, &push).await;
            (output.code == Some(0)).then_some(output.stdout)
        })
        .await;
        assert_eq!(result.trim(), "7");
    })
    .await;
}

/// Requirement X7.
#[tokio::test(flavor = "multi_thread")]
async fn a_tls_certificate_without_its_key_is_rejected() {
    on_sqlite(async |fixture| {
        for (given, missing) in [("--tls-cert", "--tls-key"), ("--tls-key", "--tls-cert")] {
            let args = ["--database", &fixture.url, "--listen", "127.0.0.1:0", given, "tls.pem"];
            let output = failed_start(fixture.folder(), &args).await;
            assert_eq!(output.code, Some(2), "{output:?}");
            assert!(output.stderr.contains(&format!("needs its {missing}")), "{output:?}");
        }
    })
    .await;
}

/// Signs in from a page of this origin and returns the complete `Set-Cookie` header.
async fn cookie(server: &Server, token: &str, origin: &str) -> String {
    // The windlass client passes its own crypto provider. This client uses the process default, which another call may
    // have set already.
    let _set = rustls::crypto::ring::default_provider().install_default();
    let pages = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none());
    let form = pages.build().expect("an HTTP client").post(format!("{}/sign-in", server.url));
    let form = form.header("content-type", "application/x-www-form-urlencoded").header("origin", origin);
    let response = form.body(format!("token={token}")).send().await.expect("the server responds");
    response.headers()["set-cookie"].to_str().expect("a header is text").to_owned()
}

/// Requirement X7.
#[tokio::test(flavor = "multi_thread")]
async fn behind_a_tls_proxy_session_cookies_are_secure() {
    on_sqlite(async |fixture| {
        let token = admin_token(&fixture).await;
        let mut plain = Serve::on(&fixture).env("WINDLASS_PUBLIC_URL", "http://windlass.example").start().await;
        assert!(!cookie(&plain, &token, "http://windlass.example").await.contains("Secure"));
        plain.program.kill().await;
        let secure =
            Serve::on(&fixture).listen("0.0.0.0:0").env("WINDLASS_PUBLIC_URL", "HTTPS://windlass.example/jobs/");
        let secure = secure.start().await;
        let given = cookie(&secure, &token, "https://windlass.example").await;
        assert!(given.ends_with("; Secure") && given.contains("HttpOnly; SameSite=Lax"), "{given}");
        assert!(!secure.program.stderr().contains("TLS"), "no warning about TLS: {}", secure.program.stderr());
        let odd = ["--database", &fixture.url, "--public-url", "windlass.example"];
        assert_eq!(failed_start(fixture.folder(), &odd).await.code, Some(2));
    })
    .await;
}

/// Requirement X7.
#[tokio::test(flavor = "multi_thread")]
async fn a_public_address_requires_a_token() {
    on_sqlite(async |fixture| {
        let args = ["--database", &fixture.url, "--listen", "0.0.0.0:0"];
        let output = failed_start(fixture.folder(), &args).await;
        assert_eq!(output.code, Some(1), "{output:?}");
        assert!(output.stderr.contains("windlass token create"), "{output:?}");
        admin_token(&fixture).await;
        let server = Serve::on(&fixture).listen("0.0.0.0:0").start().await;
        assert!(server.program.stderr().contains("TLS"), "the server warns about tokens without TLS");
    })
    .await;
}
