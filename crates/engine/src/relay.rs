//! Answers on their way: what a runtime says while it says it, for a caller that waits on this node (Q5, R8).
//!
//! A call that wants to hear names itself in its job's run before the job is made, so that not a word is missed. What is not
//! heard here, because the slot is on another node, comes with the job's result.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use domain::Epoch;
use domain::limits::{RELAY_PATIENCE_S, RELAY_PIECES};
use tokio::sync::mpsc;

#[derive(Clone, Default)]
pub struct Relay {
    listeners: Arc<Mutex<HashMap<String, mpsc::Sender<Piece>>>>,
}

/// A part of an answer, and which claim of the job it was said under.
type Piece = (Epoch, Bytes);

/// Hears until it is dropped.
pub struct Hearing {
    relay: Relay,
    run: String,
    pieces: mpsc::Receiver<Piece>,
}

impl Relay {
    pub fn listen(&self, run: &str) -> Hearing {
        let (sender, pieces) = mpsc::channel(RELAY_PIECES);
        self.listeners.lock().expect("nobody panics with the map in hand").insert(run.to_owned(), sender);
        Hearing { relay: self.clone(), run: run.to_owned(), pieces }
    }

    /// Whoever wants to hear the answer to a job of this run, claimed as `epoch`.
    pub(crate) fn listener(&self, run: Option<&str>, epoch: Epoch) -> Option<Listener> {
        let listeners = self.listeners.lock().expect("nobody panics with the map in hand");
        listeners.get(run?).cloned().map(|pieces| Listener { pieces, epoch })
    }
}

pub(crate) struct Listener {
    pieces: mpsc::Sender<Piece>,
    epoch: Epoch,
}

impl Listener {
    /// Says the next piece, and whether somebody still listens. A reader that takes nothing for long holds up nobody.
    pub(crate) async fn say(&self, piece: Bytes) -> bool {
        self.pieces.send_timeout((self.epoch, piece), Duration::from_secs(RELAY_PATIENCE_S)).await.is_ok()
    }
}

impl Hearing {
    /// The next piece. One of another epoch begins another answer: the job was given to somebody else.
    pub async fn next(&mut self) -> Option<(Epoch, Bytes)> {
        self.pieces.recv().await
    }
}

impl Drop for Hearing {
    fn drop(&mut self) {
        self.relay.listeners.lock().expect("nobody panics with the map in hand").remove(&self.run);
    }
}
