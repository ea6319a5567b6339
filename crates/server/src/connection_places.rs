//! The places of connections: how many the server keeps open, and how many of them one peer may hold. Called by `listen`.
//!
//! A peer is an IPv4 address or an IPv6 network of 64 bits. While many places are free, a peer may hold half of them: a
//! reverse proxy is one peer. When places become scarce, its share is smaller. A connection without a place of its own gets one
//! of the reserved places, in which only health checks are answered.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex};

use domain::limits::{CONNECTIONS, RESERVED_CONNECTIONS};

/// Places beyond this part of all are scarce.
const SCARCE_FROM: (usize, usize) = (3, 4);
/// One peer may hold this part of all places.
const SHARE: usize = 2;
/// One peer may hold this part of all places while they are scarce.
const SCARCE_SHARE: usize = 8;

/// How many connections the server keeps open.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    pub connections: usize,
    /// Further connections that are answered only if they ask for the health of the server.
    pub reserved: usize,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self { connections: CONNECTIONS, reserved: RESERVED_CONNECTIONS }
    }
}

/// The places of one listener; cheap to clone.
#[derive(Clone)]
pub(crate) struct ConnectionPlaces {
    limits: ConnectionLimits,
    taken: Arc<Mutex<TakenPlaces>>,
}

#[derive(Default)]
struct TakenPlaces {
    connections: usize,
    reserved: usize,
    by_peer: HashMap<IpAddr, usize>,
}

/// What a connection may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    Full,
    HealthChecksOnly,
}

/// The place of one connection. Dropping it frees the place.
pub(crate) struct ConnectionPlace {
    places: ConnectionPlaces,
    peer: IpAddr,
    pub(crate) admission: Admission,
}

impl ConnectionPlaces {
    pub(crate) fn new(limits: ConnectionLimits) -> Self {
        Self { limits, taken: Arc::default() }
    }

    /// Takes a place. `None`: the reserved places are taken too, and the connection must be closed.
    pub(crate) fn take(&self, address: IpAddr) -> Option<ConnectionPlace> {
        let peer = peer_of(address);
        let mut taken = self.taken.lock().expect("lock poisoned");
        let all = self.limits.connections;
        let is_scarce = taken.connections * SCARCE_FROM.1 >= all * SCARCE_FROM.0;
        let share = (all / if is_scarce { SCARCE_SHARE } else { SHARE }).max(1);
        let held = taken.by_peer.get(&peer).copied().unwrap_or(0);
        let admission = if taken.connections < all && held < share {
            taken.connections += 1;
            taken.by_peer.insert(peer, held + 1);
            Admission::Full
        } else if taken.reserved < self.limits.reserved {
            taken.reserved += 1;
            Admission::HealthChecksOnly
        } else {
            return None;
        };
        Some(ConnectionPlace { places: self.clone(), peer, admission })
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock().expect("lock poisoned");
        match self.admission {
            Admission::HealthChecksOnly => taken.reserved -= 1,
            Admission::Full => {
                taken.connections -= 1;
                match taken.by_peer.get_mut(&self.peer) {
                    Some(held) if *held > 1 => *held -= 1,
                    _ => drop(taken.by_peer.remove(&self.peer)),
                }
            }
        }
    }
}

/// A host often has a whole IPv6 network of 64 bits.
fn peer_of(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => IpAddr::V4(v4),
            None => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX))),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const LIMITS: ConnectionLimits = ConnectionLimits { connections: 16, reserved: 2 };

    fn v4(last: u8) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(192, 0, 2, last))
    }

    fn take_many(places: &ConnectionPlaces, peer: IpAddr, many: usize) -> Vec<ConnectionPlace> {
        (0..many).filter_map(|_| places.take(peer)).collect()
    }

    fn full(places: &[ConnectionPlace]) -> usize {
        places.iter().filter(|place| place.admission == Admission::Full).count()
    }

    #[test]
    fn one_peer_holds_half_of_the_places_and_less_when_they_are_scarce() {
        let places = ConnectionPlaces::new(LIMITS);
        let mut greedy = take_many(&places, v4(1), 9);
        assert_eq!((greedy.len(), full(&greedy)), (9, 8), "the ninth is reserved for health checks");
        let second = take_many(&places, v4(2), 5);
        assert_eq!(full(&second), 4, "with 12 of 16 places taken, each peer may hold two");
        let others: Vec<_> = (3..5).flat_map(|last| take_many(&places, v4(last), 2)).collect();
        assert_eq!(full(&others), 4, "other peers still connect");
        assert!(places.take(v4(9)).is_none(), "every place is taken, also the reserved ones");
        greedy.pop();
        assert_eq!(places.take(v4(9)).map(|place| place.admission), Some(Admission::HealthChecksOnly));
        greedy.clear();
        assert_eq!(places.take(v4(1)).map(|place| place.admission), Some(Admission::Full), "places are given back");
    }

    #[test]
    fn an_ipv6_network_and_a_mapped_address_are_one_peer() {
        let of = |text: &str| peer_of(text.parse().expect("an address"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:192.0.2.1"), v4(1));
    }

    #[test]
    fn a_peer_without_connections_is_not_remembered() {
        let places = ConnectionPlaces::new(LIMITS);
        drop(take_many(&places, v4(1), 3));
        assert!(places.taken.lock().expect("lock poisoned").by_peer.is_empty());
    }
}
