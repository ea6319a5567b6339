//! Nothing reaches an address that it should not, however the address is written or comes about.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::address::{Allowed, Private};
use engine::outbound::{Outbound, OutboundError, Request, Resolve};
use testkit::receiver::{Manner, Receiver};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Special IPv4 addresses; each is written in every way a URL can.
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

/// Hosts that are an address for whoever reads closely, and addresses that hide behind another.
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

/// What is no address of the web at all.
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

fn get(url: impl Into<String>) -> Request {
    Request {
        url: url.into(),
        method: "GET".into(),
        headers: Vec::new(),
        body: String::new(),
        // No machine stalls for so long: a time-out would be neither an answer nor a refusal.
        timeout: Duration::from_secs(3_600),
        answer_bytes: 1_000,
    }
}

/// Names as a test wants them, one answer after the other; the last one stays.
#[derive(Default)]
struct Names {
    known: Mutex<HashMap<String, Vec<Vec<IpAddr>>>>,
}

impl Names {
    fn of(names: &[(&str, &[&[&str]])]) -> Arc<Self> {
        let parse = |answer: &&[&str]| answer.iter().map(|text| text.parse().expect("an address")).collect();
        let known = names.iter().map(|(name, answers)| (name.to_string(), answers.iter().map(parse).collect()));
        Arc::new(Self { known: Mutex::new(known.collect()) })
    }
}

impl Resolve for Names {
    fn resolve(&self, host: String) -> Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>> {
        let mut known = self.known.lock().expect("nobody panics");
        let answer =
            known.get_mut(&host).map(|answers| if answers.len() > 1 { answers.remove(0) } else { answers[0].clone() });
        Box::pin(async move { answer.ok_or_else(|| io::ErrorKind::NotFound.into()) })
    }
}

#[tokio::test]
async fn q10_no_address_of_the_corpus_is_connected_to() {
    let canary = Receiver::start(Manner::Answer(200)).await;
    let port = canary.address.port();
    // Names that lead to special addresses beside the literal ones, and a resolver that would answer `localhost`.
    let outbound = Outbound::new(Allowed::default());
    let urls = corpus(port);
    assert!(urls.len() >= 200, "only {}", urls.len());
    for url in &urls {
        match outbound.send(get(url)).await {
            Err(OutboundError::Refused(_) | OutboundError::Invalid(_)) => {}
            other => panic!("{url}: {other:?}"),
        }
    }
    assert_eq!(canary.connections(), 0, "the canary was touched");
}

#[tokio::test]
async fn q10_every_special_address_is_refused_when_a_name_leads_to_it() {
    let canary = Receiver::start(Manner::Answer(200)).await;
    let port = canary.address.port();
    for text in SPECIAL_V4.iter().chain(&SPECIAL_V6) {
        let names = Names::of(&[("trap.example", &[&[text]])]);
        let outbound = Outbound::resolving(Allowed::default(), names);
        let answer = outbound.send(get(format!("http://trap.example:{port}/"))).await;
        assert!(matches!(answer, Err(OutboundError::Refused(_))), "{text}: {answer:?}");
    }
    assert_eq!(canary.connections(), 0, "the canary was touched");
}

/// One network is open, so that a name may be reached at all; the canary sits outside it on the same port.
async fn one_open_network() -> (Receiver, Receiver, Allowed) {
    let allowed = Allowed { networks: vec!["127.0.0.2/32".parse().expect("a network")], ..Allowed::default() };
    // A port that is free at one address may be taken at the other.
    for _ in 0..10 {
        let open = Receiver::at("127.0.0.2:0", Manner::Answer(200)).await;
        let beside = format!("127.0.0.1:{}", open.address.port());
        if let Ok(canary) = Receiver::try_at(&beside, Manner::Answer(200)).await {
            return (open, canary, allowed);
        }
    }
    panic!("no port is free at both addresses")
}

#[tokio::test]
async fn q10_a_name_that_changes_its_mind_reaches_only_what_was_judged() {
    let (open, canary, allowed) = one_open_network().await;
    let names = Names::of(&[("rebind.example", &[&["127.0.0.2"], &["127.0.0.1"]])]);
    let outbound = Outbound::resolving(allowed, names);
    let url = format!("http://rebind.example:{}/", open.address.port());
    assert_eq!(outbound.send(get(&url)).await.expect("it is open").status, 200);
    for _ in 0..3 {
        // By the connection that is open, to the address that was judged, or not at all.
        if let Err(error) = outbound.send(get(&url)).await {
            assert!(matches!(error, OutboundError::Refused(_)), "{error}");
        }
    }
    assert_eq!((open.connections() > 0, canary.connections()), (true, 0));
}

#[tokio::test]
async fn q10_one_bad_address_among_good_ones_refuses_the_name() {
    let (open, canary, allowed) = one_open_network().await;
    let mixed: &[&[&str]] = &[&["127.0.0.2", "127.0.0.1"]];
    let six: &[&[&str]] = &[&["127.0.0.2", "::1"]];
    let outbound = Outbound::resolving(allowed, Names::of(&[("mixed.example", mixed), ("six.example", six)]));
    for host in ["mixed.example", "six.example"] {
        let answer = outbound.send(get(format!("http://{host}:{}/", open.address.port()))).await;
        assert!(matches!(answer, Err(OutboundError::Refused(_))), "{host}: {answer:?}");
    }
    assert_eq!((open.connections(), canary.connections()), (0, 0));
}

#[tokio::test]
async fn q10_private_addresses_are_reached_when_they_are_allowed() {
    let home = Receiver::start(Manner::Answer(204)).await;
    let private = Outbound::new(Allowed { private: Private::Allowed, networks: Vec::new() });
    assert_eq!(private.send(get(home.url())).await.expect("loopback is open").status, 204);
    let local = format!("http://localhost:{}/", home.address.port());
    assert_eq!(private.send(get(local)).await.expect("loopback is open").status, 204);
    let metadata = private.send(get("http://169.254.169.254/latest/meta-data/")).await;
    assert!(matches!(metadata, Err(OutboundError::Refused(_))), "{metadata:?}");
    let none = private.send(get("http://0.0.0.0/")).await;
    assert!(matches!(none, Err(OutboundError::Refused(_))), "{none:?}");
}

#[tokio::test]
async fn q10_a_redirect_is_an_answer_and_not_a_way() {
    let canary = Receiver::start(Manner::Answer(200)).await;
    let sly = Receiver::start(Manner::Redirect(canary.url())).await;
    let outbound = Outbound::new(Allowed { private: Private::Allowed, networks: Vec::new() });
    assert_eq!(outbound.send(get(sly.url())).await.expect("an answer").status, 302);
    assert_eq!(canary.connections(), 0);
}

#[tokio::test]
async fn q10_a_receiver_that_does_not_come_to_the_end_of_its_words_has_answered() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let url = format!("http://{}/", listener.local_addr().expect("is bound"));
    let mut receiver = tokio::task::JoinSet::new();
    receiver.spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("accepts");
        let mut asked = [0; 4_096];
        assert!(stream.read(&mut asked).await.expect("reads") > 0);
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhello").await.expect("answers");
        std::future::pending::<()>().await;
    });
    let outbound = Outbound::new(Allowed { private: Private::Allowed, networks: Vec::new() });
    let answer = outbound.send(Request { timeout: Duration::from_secs(3), ..get(url) }).await.expect("the status came");
    assert_eq!((answer.status, answer.body.as_slice(), answer.cut), (200, b"hello".as_slice(), true));
}
