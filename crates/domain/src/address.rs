//! Which addresses outbound calls may reach. A URL comes from a user; the network behind this program is not theirs.
//!
//! Only addresses that the public internet routes are open by default. Forms that carry an IPv4 address inside an IPv6
//! one are judged by what they carry, or refused where the carrying itself is obsolete.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// Who an address can belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Routed by the public internet.
    Public,
    /// Somebody's own network or this machine: loopback, RFC 1918, unique local, carrier-grade NAT.
    Private,
    /// No host to talk to, or one that must never be reached by accident: link-local (where clouds keep credentials),
    /// multicast, documentation, reserved, and the obsolete ways of wrapping IPv4.
    Special,
}

/// What an outbound call may reach.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Allowed {
    pub private: Private,
    /// Networks that are open whatever kind they are of.
    pub networks: Vec<Network>,
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
        match reach(address) {
            Reach::Public => true,
            Reach::Private => self.private == Private::Allowed,
            Reach::Special => false,
        }
    }
}

pub fn reach(address: IpAddr) -> Reach {
    match unmapped(address) {
        IpAddr::V4(address) => reach_v4(address),
        IpAddr::V6(address) => reach_v6(address),
    }
}

/// An IPv4 address that came as `::ffff:a.b.c.d` is that address: the kernel connects to it as such.
fn unmapped(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(address, IpAddr::V4),
        v4 => v4,
    }
}

fn reach_v4(address: Ipv4Addr) -> Reach {
    let [a, b, c, _] = address.octets();
    match (a, b, c) {
        (10 | 127, _, _) | (172, 16..=31, _) | (192, 168, _) | (100, 64..=127, _) => Reach::Private,
        (0, _, _) | (169, 254, _) | (198, 18 | 19, _) | (224.., _, _) => Reach::Special,
        (192, 0, 0 | 2) | (192, 88, 99) | (198, 51, 100) | (203, 0, 113) => Reach::Special,
        // AS112: addresses that answer for names nobody should ask.
        (192, 31, 196) | (192, 52, 193) | (192, 175, 48) => Reach::Special,
        _ => Reach::Public,
    }
}

fn reach_v6(address: Ipv6Addr) -> Reach {
    let [a, b, c, d, e, f, g, h] = address.segments();
    let carried = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match (a, b) {
        (0, 0) if (c, d, e, f, g, h) == (0, 0, 0, 0, 0, 1) => Reach::Private,
        // NAT64 (RFC 6052): a network without IPv4 reaches it through these, and so they lead to what they carry.
        (0x64, 0xff9b) if (c, d, e, f) == (0, 0, 0, 0) => reach_v4(carried(g, h)),
        (0xfc00..=0xfdff, _) => Reach::Private,
        // IETF protocol assignments with Teredo and ORCHID; documentation; 6to4.
        (0x2001, 0..=0x1ff | 0xdb8) | (0x2002, _) | (0x3fff, 0..=0xfff) => Reach::Special,
        // ISATAP wraps IPv4 in the interface's half of any prefix.
        (0x2000..=0x3fff, _) if matches!((e, f), (0 | 0x200, 0x5efe)) => Reach::Special,
        (0x2000..=0x3fff, _) => Reach::Public,
        _ => Reach::Special,
    }
}

/// A network in CIDR notation: `10.1.0.0/16`, `fd00::/8`, or one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    base: IpAddr,
    prefix: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a network: write it like 10.1.0.0/16, fd00::/8 or 192.168.7.9")]
pub struct NetworkError(String);

impl Network {
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

impl FromStr for Network {
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

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Reach {
        reach(text.parse().expect("an address"))
    }

    #[test]
    fn q10_wrapped_addresses_are_judged_by_what_they_carry() {
        for (text, expected) in [
            ("1.1.1.1", Reach::Public),
            ("2606:4700::1111", Reach::Public),
            ("::ffff:10.0.0.1", Reach::Private),
            ("::ffff:8.8.8.8", Reach::Public),
            ("64:ff9b::7f00:1", Reach::Private),
            ("64:ff9b::808:808", Reach::Public),
            ("64:ff9b:1::808:808", Reach::Special),
            ("2002:7f00:1::", Reach::Special),
            ("2001:0:53aa:64c:0:7f:a9fe:a9fe", Reach::Special),
            ("2606:4700::5efe:7f00:1", Reach::Special),
            ("::7f00:1", Reach::Special),
            ("::", Reach::Special),
            ("::1", Reach::Private),
            ("fe80::1", Reach::Special),
            ("169.254.169.254", Reach::Special),
        ] {
            assert_eq!(of(text), expected, "{text}");
        }
    }

    #[test]
    fn q10_private_addresses_open_with_the_flag_and_single_networks_by_name() {
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
    fn a_network_that_makes_no_sense_is_refused_by_name() {
        for text in ["", "10.0.0.0/33", "::/129", "10.0.0/8", "10.0.0.0/-1", "a.b.c.d/8", "10.0.0.0/8/8"] {
            assert_eq!(text.parse::<Network>(), Err(NetworkError(text.into())));
        }
        assert!("0.0.0.0/0".parse::<Network>().expect("everything").contains(Ipv4Addr::LOCALHOST.into()));
        assert!("::/0".parse::<Network>().expect("everything").contains(Ipv6Addr::LOCALHOST.into()));
    }
}
