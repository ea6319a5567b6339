//! X7: PostgreSQL behind TLS, as Debian sets it up: with a certificate that it signed itself.

use crate::support::{Cluster, Place, Serve, refused};

const CERTIFICATE: &str = include_str!("tls/one.crt");
const KEY: &str = include_str!("tls/one.key");
const OTHER: &str = include_str!("tls/two.crt");

#[tokio::test(flavor = "multi_thread")]
async fn x7_a_server_that_signed_its_own_certificate_is_judged_where_that_is_asked_for() {
    let mut cluster = Cluster::start().await;
    cluster.put("server.crt", CERTIFICATE);
    cluster.put("server.key", KEY);
    cluster.put("postgresql.auto.conf", "ssl = on\n");
    cluster.crash().await;
    cluster.run().await;
    let mut place = Place::on_server(&cluster.url()).await;
    let plain = place.url.clone();
    std::fs::write(place.path("one.crt"), CERTIFICATE).expect("the folder takes files");
    std::fs::write(place.path("two.crt"), OTHER).expect("the folder takes files");
    let signed_by = |name: &str| format!("?sslmode=verify-full&sslrootcert={}", place.path(name).display());
    let (known, unknown) = (signed_by("one.crt"), signed_by("two.crt"));
    for query in ["", "?sslmode=require", &known] {
        place.url = format!("{plain}{query}");
        let server = Serve::on(&place).start().await;
        server.client().queues(None).await.expect("it serves");
    }
    let told = refused(place.folder(), &["--database", &format!("{plain}{unknown}")]).await;
    assert!(told.code != Some(0) && told.stderr.contains("certificate"), "{}", told.stderr);
    let told = refused(place.folder(), &["--database", &format!("{plain}?sslmode=verify-full")]).await;
    assert!(told.code != Some(0) && told.stderr.contains("certificate"), "{}", told.stderr);
}
