//! The guard against server-side request forgery: no forbidden address is reachable, however it is written or resolved.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::address::{Allowed, Private};
use engine::outbound::{DnsResolver, Outbound, OutboundError, OutboundRequest};
use testkit::receiver::{Behavior, Receiver};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Special IPv4 addresses. The corpus contains each of them in every notation that a URL allows.
const SPECIAL_V4: [&str; 24] = [
    "127.0.0.1",
    "127.0.0.53",
    "127.255.255.254",
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "10.255.255.255",
    "100.64.0.1",
    "100.127.255.254",
    "169.254.169.254",
    "169.254.170.2",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.8",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.0.1",
    "192.168.255.255",
    "198.18.0.1",
    "198.51.100.7",
    "203.0.113.9",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
];

const SPECIAL_V6: [&str; 26] = [
    "::",
    "::1",
    "0:0:0:0:0:0:0:1",
    "::127.0.0.1",
    "::ffff:0:127.0.0.1",
    "64:ff9b::127.0.0.1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b::10.0.0.1",
    "64:ff9b:1::1.1.1.1",
    "64:ff9b:1:fffe::7f00:1",
    "100::1",
    "2001::1",
    "2001:0:53aa:64c:0:7f:80ff:fffe",
    "2001:10::1",
    "2001:20::1",
    "2001:db8::1",
    "2002:7f00:1::",
    "2002:a9fe:a9fe::1",
    "2002:0a00:0001::1",
    "3fff::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fec0::1",
    "ff02::1",
    "5f00::1",
];

/// URLs whose host is parsed as a loopback address, and hosts that are hidden behind another.
const TRICKS: [&str; 24] = [
    "http://127.1:PORT/",
    "http://127.0.1:PORT/",
    "http://0:PORT/",
    "http://0x0:PORT/",
    "http://00.0:PORT/",
    "http://0177.0x0.0.1:PORT/",
    "http://0x7f.1:PORT/",
    "http://127.000.000.001:PORT/",
    "http://127.0.0.1.:PORT/",
    "http://%31%32%37.0.0.1:PORT/",
    "http://127%2e0%2e0%2e1:PORT/",
    "http://①②⑦.⓪.⓪.①:PORT/",
    "http://１２７.０.０.１:PORT/",
    "http://127。0。0。1:PORT/",
    "http://１２７｡０｡０｡１:PORT/",
    "http://1.1.1.1@127.0.0.1:PORT/",
    "http://example.com:80@127.0.0.1:PORT/",
    "http://127.0.0.1:PORT\\@1.1.1.1/",
    "http:\\\\127.0.0.1:PORT/",
    "http:127.0.0.1:PORT/",
    "http:///127.0.0.1:PORT/",
    "http://127.0.0.1:PORT#@1.1.1.1/",
    "http://\t127.0.0\n.1:PORT/",
    "HTTP://LOCALHOST:PORT/",
];

/// URLs that are not HTTP or are malformed.
const NOT_WEB: [&str; 10] = [
    "file:///etc/passwd",
    "gopher://127.0.0.1:PORT/_x",
    "ftp://127.0.0.1:PORT/",
    "dict://127.0.0.1:PORT/",
    "unix:/var/run/docker.sock",
    "data:text/plain,x",
    "http://",
    "http://[::1:PORT/",
    "http://[fe80::1%25eth0]:PORT/",
    "//127.0.0.1:PORT/",
];

fn corpus(port: u16) -> Vec<String> {
    let mut urls = Vec::new();
    for text in SPECIAL_V4 {
        let address: Ipv4Addr = text.parse().expect("an address");
        let [a, b, c, d] = address.octets();
        let number = u32::from(address);
        let hosts = [
            text.to_owned(),
            number.to_string(),
            format!("0x{number:08x}"),
            format!("0{number:o}"),
            format!("0{a:o}.0{b:o}.0{c:o}.0{d:o}"),
            format!("0x{a:x}.0x{b:x}.0x{c:x}.0x{d:x}"),
            format!("{a}.{}", number & 0xff_ffff),
            format!("[::ffff:{text}]"),
            format!("[::ffff:{:x}:{:x}]", number >> 16, number & 0xffff),
        ];
        urls.extend(hosts.into_iter().map(|host| format!("http://{host}:{port}/")));
    }
    urls.extend(SPECIAL_V6.iter().map(|text| format!("http://[{text}]:{port}/")));
    urls.extend(TRICKS.iter().chain(&NOT_WEB).map(|url| url.replace("PORT", &port.to_string())));
    urls
}

fn get(url: impl Into<String>) -> OutboundRequest {
    OutboundRequest {
        url: url.into(),
        method: "GET".into(),
        headers: Vec::new(),
        body: String::new(),
        // Longer than any pause of a test machine, so that no request times out.
        timeout: Duration::from_secs(3_600),
        max_response_bytes: 1_000,
    }
}

/// A resolver with a sequence of answers per name. The last answer is repeated.
#[derive(Default)]
struct FakeResolver {
    answers: Mutex<HashMap<String, Vec<Vec<IpAddr>>>>,
}

impl FakeResolver {
    fn of(names: &[(&str, &[&[&str]])]) -> Arc<Self> {
        let parse = |answer: &&[&str]| answer.iter().map(|text| text.parse().expect("an address")).collect();
        let answers = names.iter().map(|(name, answers)| (name.to_string(), answers.iter().map(parse).collect()));
        Arc::new(Self { answers: Mutex::new(answers.collect()) })
    }
}

impl DnsResolver for FakeResolver {
    fn resolve(&self, host: String) -> Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>> {
        let mut names = self.answers.lock().expect("lock poisoned");
        let answer =
            names.get_mut(&host).map(|answers| if answers.len() > 1 { answers.remove(0) } else { answers[0].clone() });
        Box::pin(async move { answer.ok_or_else(|| io::ErrorKind::NotFound.into()) })
    }
}

/// Requirement Q10.
#[tokio::test]
async fn no_address_of_the_ssrf_corpus_gets_a_connection() {
    let canary = Receiver::start(Behavior::Respond(200)).await;
    let port = canary.address.port();
    // Literal addresses, and `localhost`, which the system resolver would resolve.
    let outbound = Outbound::new(Allowed::default());
    let urls = corpus(port);
    assert!(urls.len() >= 200, "only {}", urls.len());
    for url in &urls {
        match outbound.send(get(url)).await {
            Err(OutboundError::Refused(_) | OutboundError::Invalid(_)) => {}
            other => panic!("{url}: {other:?}"),
        }
    }
    assert_eq!(canary.connections(), 0, "the canary got a connection");
}

/// Requirement Q10.
#[tokio::test]
async fn a_name_that_resolves_to_a_special_address_is_refused() {
    let canary = Receiver::start(Behavior::Respond(200)).await;
    let port = canary.address.port();
    for text in SPECIAL_V4.iter().chain(&SPECIAL_V6) {
        let names = FakeResolver::of(&[("trap.example", &[&[text]])]);
        let outbound = Outbound::with_resolver(Allowed::default(), names);
        let answer = outbound.send(get(format!("http://trap.example:{port}/"))).await;
        assert!(matches!(answer, Err(OutboundError::Refused(_))), "{text}: {answer:?}");
    }
    assert_eq!(canary.connections(), 0, "the canary got a connection");
}

/// Returns a receiver in an allowed network, a canary outside of it on the same port, and the allowed network.
async fn one_open_network() -> (Receiver, Receiver, Allowed) {
    let allowed = Allowed { networks: vec!["127.0.0.2/32".parse().expect("a network")], ..Allowed::default() };
    // The port may be in use at the other address.
    for _ in 0..10 {
        let open = Receiver::at("127.0.0.2:0", Behavior::Respond(200)).await;
        let beside = format!("127.0.0.1:{}", open.address.port());
        if let Ok(canary) = Receiver::try_at(&beside, Behavior::Respond(200)).await {
            return (open, canary, allowed);
        }
    }
    panic!("no port is free at both addresses")
}

/// Requirement Q10.
#[tokio::test]
async fn dns_rebinding_cannot_reach_an_unchecked_address() {
    let (open, canary, allowed) = one_open_network().await;
    let names = FakeResolver::of(&[("rebind.example", &[&["127.0.0.2"], &["127.0.0.1"]])]);
    let outbound = Outbound::with_resolver(allowed, names);
    let url = format!("http://rebind.example:{}/", open.address.port());
    assert_eq!(outbound.send(get(&url)).await.expect("the address is allowed").status, 200);
    for _ in 0..3 {
        // A request uses the open connection or the checked address, or it is refused.
        if let Err(error) = outbound.send(get(&url)).await {
            assert!(matches!(error, OutboundError::Refused(_)), "{error}");
        }
    }
    assert_eq!((open.connections() > 0, canary.connections()), (true, 0));
}

/// Requirement Q10.
#[tokio::test]
async fn one_forbidden_address_among_allowed_ones_refuses_the_name() {
    let (open, canary, allowed) = one_open_network().await;
    let mixed: &[&[&str]] = &[&["127.0.0.2", "127.0.0.1"]];
    let six: &[&[&str]] = &[&["127.0.0.2", "::1"]];
    let outbound =
        Outbound::with_resolver(allowed, FakeResolver::of(&[("mixed.example", mixed), ("six.example", six)]));
    for host in ["mixed.example", "six.example"] {
        let answer = outbound.send(get(format!("http://{host}:{}/", open.address.port()))).await;
        assert!(matches!(answer, Err(OutboundError::Refused(_))), "{host}: {answer:?}");
    }
    assert_eq!((open.connections(), canary.connections()), (0, 0));
}

/// Requirement Q10.
#[tokio::test]
async fn allowed_private_addresses_are_reachable() {
    let home = Receiver::start(Behavior::Respond(204)).await;
    let private = Outbound::new(Allowed { private: Private::Allowed, networks: Vec::new() });
    assert_eq!(private.send(get(home.url())).await.expect("loopback is allowed").status, 204);
    let local = format!("http://localhost:{}/", home.address.port());
    assert_eq!(private.send(get(local)).await.expect("loopback is allowed").status, 204);
    let metadata = private.send(get("http://169.254.169.254/latest/meta-data/")).await;
    assert!(matches!(metadata, Err(OutboundError::Refused(_))), "{metadata:?}");
    let none = private.send(get("http://0.0.0.0/")).await;
    assert!(matches!(none, Err(OutboundError::Refused(_))), "{none:?}");
}

/// Requirement Q10.
#[tokio::test]
async fn a_redirect_is_returned_and_not_followed() {
    let canary = Receiver::start(Behavior::Respond(200)).await;
    let redirecting = Receiver::start(Behavior::Redirect(canary.url())).await;
    let outbound = Outbound::new(Allowed { private: Private::Allowed, networks: Vec::new() });
    assert_eq!(outbound.send(get(redirecting.url())).await.expect("a response").status, 302);
    assert_eq!(canary.connections(), 0);
}

/// Requirement Q10.
#[tokio::test]
async fn an_incomplete_response_body_still_counts_as_an_answer() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let url = format!("http://{}/", listener.local_addr().expect("is bound"));
    let mut receiver = tokio::task::JoinSet::new();
    receiver.spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("accepts");
        let mut request = [0; 4_096];
        assert!(stream.read(&mut request).await.expect("reads") > 0);
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhello").await.expect("responds");
        std::future::pending::<()>().await;
    });
    let outbound = Outbound::new(Allowed { private: Private::Allowed, networks: Vec::new() });
    let request = OutboundRequest { timeout: Duration::from_secs(3), ..get(url) };
    let response = outbound.send(request).await.expect("the status was received");
    assert_eq!((response.status, response.body.as_slice(), response.truncated), (200, b"hello".as_slice(), true));
}
