//! TLS to a PostgreSQL server with a self-signed certificate, as Debian configures it.

use crate::support::{Cluster, Fixture, Serve, failed_start};

const CERTIFICATE: &str = include_str!("tls/one.crt");
const KEY: &str = include_str!("tls/one.key");
const OTHER: &str = include_str!("tls/two.crt");

/// Requirement X7.
#[tokio::test(flavor = "multi_thread")]
async fn a_self_signed_database_certificate_is_verified_only_with_verify_full() {
    let mut cluster = Cluster::start().await;
    cluster.put("server.crt", CERTIFICATE);
    cluster.put("server.key", KEY);
    cluster.put("postgresql.auto.conf", "ssl = on\n");
    cluster.crash().await;
    cluster.run().await;
    let mut fixture = Fixture::on_server(&cluster.url()).await;
    let plain = fixture.url.clone();
    std::fs::write(fixture.path("one.crt"), CERTIFICATE).expect("writes the file");
    std::fs::write(fixture.path("two.crt"), OTHER).expect("writes the file");
    let verify_with = |name: &str| format!("?sslmode=verify-full&sslrootcert={}", fixture.path(name).display());
    let (trusted, untrusted) = (verify_with("one.crt"), verify_with("two.crt"));
    for query in ["", "?sslmode=require", &trusted] {
        fixture.url = format!("{plain}{query}");
        let server = Serve::on(&fixture).start().await;
        server.client().queues(None).await.expect("the server responds");
    }
    for query in [untrusted.as_str(), "?sslmode=verify-full"] {
        let failed = failed_start(fixture.folder(), &["--database", &format!("{plain}{query}")]).await;
        assert!(failed.code != Some(0) && failed.stderr.contains("certificate"), "{}", failed.stderr);
    }
}
