//! Addresses that outbound calls may reach: the protection against server-side request forgery.
//!
//! Users supply the URLs, but must not reach the private network that Windlass runs in. Only addresses that the public
//! internet routes are allowed by default. An IPv6 address that embeds an IPv4 address is classified by the embedded
//! one, or refused if the embedding is obsolete.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// Whether and where an address is routed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressClass {
    /// Routed by the public internet.
    Public,
    /// A private network or this machine: loopback, RFC 1918, unique local, carrier-grade NAT.
    Private,
    /// Not a host, or one that must never be reached by accident: link-local (cloud metadata services, which serve
    /// credentials), multicast, documentation, reserved, and obsolete embeddings of IPv4.
    Special,
}

/// The addresses that outbound calls may reach.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Allowed {
    pub private: Private,
    /// Networks that are allowed regardless of their class.
    pub networks: Vec<CidrNetwork>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Private {
    #[default]
    Refused,
    Allowed,
}

impl Allowed {
    pub fn permits(&self, address: IpAddr) -> bool {
        let address = unmapped(address);
        if self.networks.iter().any(|network| network.contains(address)) {
            return true;
        }
        match classify(address) {
            AddressClass::Public => true,
            AddressClass::Private => self.private == Private::Allowed,
            AddressClass::Special => false,
        }
    }
}

pub fn classify(address: IpAddr) -> AddressClass {
    match unmapped(address) {
        IpAddr::V4(address) => reach_v4(address),
        IpAddr::V6(address) => reach_v6(address),
    }
}

/// An IPv4-mapped address (`::ffff:a.b.c.d`) as IPv4, because the kernel connects to the IPv4 address.
fn unmapped(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(address, IpAddr::V4),
        v4 => v4,
    }
}

fn reach_v4(address: Ipv4Addr) -> AddressClass {
    let [a, b, c, _] = address.octets();
    match (a, b, c) {
        (10 | 127, _, _) | (172, 16..=31, _) | (192, 168, _) | (100, 64..=127, _) => AddressClass::Private,
        (0, _, _) | (169, 254, _) | (198, 18 | 19, _) | (224.., _, _) => AddressClass::Special,
        (192, 0, 0 | 2) | (192, 88, 99) | (198, 51, 100) | (203, 0, 113) => AddressClass::Special,
        // AS112: sinkholes for reverse lookups of private addresses.
        (192, 31, 196) | (192, 52, 193) | (192, 175, 48) => AddressClass::Special,
        _ => AddressClass::Public,
    }
}

fn reach_v6(address: Ipv6Addr) -> AddressClass {
    let [a, b, c, d, e, f, g, h] = address.segments();
    let carried = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match (a, b) {
        (0, 0) if (c, d, e, f, g, h) == (0, 0, 0, 0, 0, 1) => AddressClass::Private,
        // NAT64 (RFC 6052): leads to the embedded IPv4 address.
        (0x64, 0xff9b) if (c, d, e, f) == (0, 0, 0, 0) => reach_v4(carried(g, h)),
        (0xfc00..=0xfdff, _) => AddressClass::Private,
        // IETF protocol assignments with Teredo and ORCHID; documentation; 6to4.
        (0x2001, 0..=0x1ff | 0xdb8) | (0x2002, _) | (0x3fff, 0..=0xfff) => AddressClass::Special,
        // ISATAP embeds an IPv4 address in the interface identifier of any prefix.
        (0x2000..=0x3fff, _) if matches!((e, f), (0 | 0x200, 0x5efe)) => AddressClass::Special,
        (0x2000..=0x3fff, _) => AddressClass::Public,
        _ => AddressClass::Special,
    }
}

/// A network in CIDR notation: `10.1.0.0/16`, `fd00::/8`, or one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CidrNetwork {
    base: IpAddr,
    prefix: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a network; expected a form like 10.1.0.0/16, fd00::/8 or 192.168.7.9")]
pub struct NetworkError(String);

impl CidrNetwork {
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.base, unmapped(address)) {
            (IpAddr::V4(base), IpAddr::V4(address)) => {
                same_prefix(u32::from(base).into(), u32::from(address).into(), 32, self.prefix)
            }
            (IpAddr::V6(base), IpAddr::V6(address)) => same_prefix(base.into(), address.into(), 128, self.prefix),
            _ => false,
        }
    }
}

fn same_prefix(one: u128, other: u128, width: u8, prefix: u8) -> bool {
    let host_bits = u32::from(width - prefix);
    one.checked_shr(host_bits) == other.checked_shr(host_bits)
}

impl FromStr for CidrNetwork {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let wrong = || NetworkError(text.to_owned());
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix.parse::<u8>().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let base: IpAddr = address.parse().map_err(|_| wrong())?;
        let width = if base.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.unwrap_or(width);
        if prefix > width {
            return Err(wrong());
        }
        Ok(Self { base, prefix })
    }
}

impl fmt::Display for CidrNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> AddressClass {
        classify(text.parse().expect("an address"))
    }

    /// Requirement Q10.
    #[test]
    fn address_classes_cover_embedded_ipv4_addresses() {
        for (text, expected) in [
            ("1.1.1.1", AddressClass::Public),
            ("2606:4700::1111", AddressClass::Public),
            ("::ffff:10.0.0.1", AddressClass::Private),
            ("::ffff:8.8.8.8", AddressClass::Public),
            ("64:ff9b::7f00:1", AddressClass::Private),
            ("64:ff9b::808:808", AddressClass::Public),
            ("64:ff9b:1::808:808", AddressClass::Special),
            ("2002:7f00:1::", AddressClass::Special),
            ("2001:0:53aa:64c:0:7f:a9fe:a9fe", AddressClass::Special),
            ("2606:4700::5efe:7f00:1", AddressClass::Special),
            ("::7f00:1", AddressClass::Special),
            ("::", AddressClass::Special),
            ("::1", AddressClass::Private),
            ("fe80::1", AddressClass::Special),
            ("169.254.169.254", AddressClass::Special),
        ] {
            assert_eq!(of(text), expected, "{text}");
        }
    }

    /// Requirement Q10.
    #[test]
    fn private_addresses_need_the_flag_or_an_allowed_network() {
        let metadata: IpAddr = "169.254.169.254".parse().expect("an address");
        let home: IpAddr = "192.168.7.9".parse().expect("an address");
        let closed = Allowed::default();
        assert!(!closed.permits(home) && !closed.permits(metadata));
        let private = Allowed { private: Private::Allowed, networks: Vec::new() };
        assert!(private.permits(home) && !private.permits(metadata), "a cloud's credentials stay out of reach");
        let named = Allowed { networks: vec!["192.168.0.0/16".parse().expect("a network")], ..Allowed::default() };
        assert!(named.permits(home) && !named.permits("10.0.0.1".parse().expect("an address")));
        assert!(named.permits("::ffff:192.168.7.9".parse().expect("an address")));
    }

    #[test]
    fn an_invalid_cidr_network_is_rejected_with_its_text() {
        for text in ["", "10.0.0.0/33", "::/129", "10.0.0/8", "10.0.0.0/-1", "a.b.c.d/8", "10.0.0.0/8/8"] {
            assert_eq!(text.parse::<CidrNetwork>(), Err(NetworkError(text.into())));
        }
        assert!("0.0.0.0/0".parse::<CidrNetwork>().expect("everything").contains(Ipv4Addr::LOCALHOST.into()));
        assert!("::/0".parse::<CidrNetwork>().expect("everything").contains(Ipv6Addr::LOCALHOST.into()));
    }
}
