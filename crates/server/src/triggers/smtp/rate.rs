//! Limits per peer: concurrent sessions, and messages per minute.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use domain::limits::{SMTP_MESSAGES_PER_MINUTE, SMTP_PEERS};

#[derive(Default)]
pub(crate) struct Peers {
    by_address: Mutex<HashMap<IpAddr, Peer>>,
}

#[derive(Default)]
struct Peer {
    sessions: usize,
    messages: usize,
    since: Option<Instant>,
}

/// Permit for one session of a peer. Released when dropped.
pub(super) struct SessionPermit {
    peers: Arc<Peers>,
    peer: IpAddr,
}

impl Peers {
    pub(super) fn enter(
        self: &Arc<Self>,
        peer: IpAddr,
        max_sessions: usize,
        max_per_peer: usize,
    ) -> Option<SessionPermit> {
        let mut by_address = self.by_address.lock().expect("lock poisoned");
        if by_address.values().map(|peer| peer.sessions).sum::<usize>() >= max_sessions {
            return None;
        }
        if by_address.len() >= SMTP_PEERS {
            by_address.retain(|_, peer| peer.sessions > 0 || !peer.is_expired());
        }
        let entry = by_address.entry(peer).or_default();
        if entry.sessions >= max_per_peer {
            return None;
        }
        entry.sessions += 1;
        Some(SessionPermit { peers: self.clone(), peer })
    }

    /// Counts a message. Returns false if the peer has exceeded its limit in this minute.
    pub(super) fn may_send(&self, peer: IpAddr) -> bool {
        let mut by_address = self.by_address.lock().expect("lock poisoned");
        let entry = by_address.entry(peer).or_default();
        if entry.is_expired() {
            (entry.since, entry.messages) = (Some(Instant::now()), 0);
        }
        entry.messages += 1;
        entry.messages <= SMTP_MESSAGES_PER_MINUTE
    }
}

impl Peer {
    fn is_expired(&self) -> bool {
        self.since.is_none_or(|since| since.elapsed() >= Duration::from_secs(60))
    }
}

impl Drop for SessionPermit {
    fn drop(&mut self) {
        let mut by_address = self.peers.by_address.lock().expect("lock poisoned");
        if let Some(peer) = by_address.get_mut(&self.peer) {
            peer.sessions -= 1;
        }
    }
}
