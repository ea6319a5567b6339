//! How much one peer may ask for: sessions at once, and messages in a minute.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use domain::limits::{SMTP_MESSAGES_PER_MINUTE, SMTP_PEERS};

#[derive(Default)]
pub(crate) struct Peers {
    known: Mutex<HashMap<IpAddr, Peer>>,
}

#[derive(Default)]
struct Peer {
    sessions: usize,
    messages: usize,
    since: Option<Instant>,
}

/// A peer's place among the sessions; given back when dropped.
pub(super) struct Place {
    peers: Arc<Peers>,
    peer: IpAddr,
}

impl Peers {
    pub(super) fn enter(self: &Arc<Self>, peer: IpAddr, most: usize, most_of_one: usize) -> Option<Place> {
        let mut known = self.known.lock().expect("nobody panics with the map in hand");
        if known.values().map(|peer| peer.sessions).sum::<usize>() >= most {
            return None;
        }
        if known.len() >= SMTP_PEERS {
            known.retain(|_, peer| peer.sessions > 0 || !peer.is_forgotten());
        }
        let entry = known.entry(peer).or_default();
        if entry.sessions >= most_of_one {
            return None;
        }
        entry.sessions += 1;
        Some(Place { peers: self.clone(), peer })
    }

    /// Counts a message, unless there were too many in this minute.
    pub(super) fn may_send(&self, peer: IpAddr) -> bool {
        let mut known = self.known.lock().expect("nobody panics with the map in hand");
        let entry = known.entry(peer).or_default();
        if entry.is_forgotten() {
            (entry.since, entry.messages) = (Some(Instant::now()), 0);
        }
        entry.messages += 1;
        entry.messages <= SMTP_MESSAGES_PER_MINUTE
    }
}

impl Peer {
    fn is_forgotten(&self) -> bool {
        self.since.is_none_or(|since| since.elapsed() >= Duration::from_secs(60))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut known = self.peers.known.lock().expect("nobody panics with the map in hand");
        if let Some(peer) = known.get_mut(&self.peer) {
            peer.sessions -= 1;
        }
    }
}
