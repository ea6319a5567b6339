//! Fuzz targets for outbound addresses: URLs, IP addresses and networks.

use std::net::{IpAddr, Ipv4Addr};

use domain::address::{AddressClass, Allowed, CidrNetwork, classify};
use engine::outbound::{address_in, parse_url};

/// Input: lines, each a URL, an address or a network. The verdict on an address must not depend on its notation, and a
/// host that is a number in any notation must parse as an address: otherwise a host that passes as a name could resolve
/// to a forbidden address.
pub fn address(data: &[u8]) {
    for line in String::from_utf8_lossy(data).split('\n').take(8) {
        url(line);
        network(line);
        if let Ok(address) = line.parse::<IpAddr>() {
            check_verdict(address);
        }
    }
}

fn url(text: &str) {
    let Ok(url) = parse_url(text) else { return };
    assert!(matches!(url.scheme(), "http" | "https") && url.username().is_empty() && url.password().is_none());
    let again = parse_url(url.as_str()).expect("a URL reads back");
    assert_eq!(again.as_str(), url.as_str());
    let host = url.host_str().expect("it has a host");
    let last = host.strip_suffix('.').unwrap_or(host).rsplit('.').next().unwrap_or_default();
    let number = last.strip_prefix("0x").map_or_else(
        || !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit()),
        |digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()),
    );
    match address_in(&url) {
        Some(address) => check_verdict(address),
        None => assert!(!number && !host.starts_with('['), "{host} is a name"),
    }
}

fn check_verdict(address: IpAddr) {
    assert_eq!(Allowed::default().permits(address), classify(address) == AddressClass::Public);
    if let IpAddr::V4(v4) = address {
        assert_eq!(classify(v4.to_ipv6_mapped().into()), classify(address));
        assert!(
            !v4.is_loopback() && !v4.is_private() && !v4.is_link_local() || classify(address) != AddressClass::Public
        );
    }
}

fn network(text: &str) {
    let Ok(network) = text.parse::<CidrNetwork>() else { return };
    assert_eq!(network.to_string().parse(), Ok(network));
    let base = text.split('/').next().unwrap_or_default();
    let base: IpAddr = base.parse().expect("a network begins with an address");
    // A network written as IPv6 that means IPv4 contains nothing: addresses are compared in canonical form.
    if base.is_ipv4() || base.to_canonical().is_ipv6() {
        assert!(network.contains(base));
    }
    let one = Ipv4Addr::new(198, 51, 100, 7);
    assert_eq!(network.contains(one.into()), network.contains(one.to_ipv6_mapped().into()));
}
