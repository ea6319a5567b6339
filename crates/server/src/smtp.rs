//! Mail that comes in (T1): a small SMTP listener, off unless asked for. Each message it accepts is one event.
//!
//! It takes mail for addresses that somebody waits for, within limits of size and rate, and says 250 only once the event
//! is durable. It relays nothing, keeps nothing and speaks to nobody: put a mail server in front of it for the open internet.

mod mail;
mod rate;
mod room;
pub(crate) mod session;

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use domain::limits::{SMTP_SESSION_S, SMTP_SESSIONS, SMTP_SESSIONS_PER_PEER};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use mail::Mail;
pub(crate) use rate::Peers;
pub use room::StoreMailroom;

pub(crate) type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Who takes the mail in.
pub trait Mailroom: Send + Sync + 'static {
    /// Whether anybody waits for mail to this address.
    fn knows(&self, address: String) -> BoxFuture<Result<bool, MailroomError>>;
    /// Returns once the mail is safe.
    fn take(&self, mail: Mail) -> BoxFuture<Result<(), MailroomError>>;
}

/// It cannot be taken now; the sender keeps it and comes again.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct MailroomError(pub String);

/// Listens until told to stop. Sessions under way get a moment to end: a mail that is being taken is taken and answered.
pub async fn serve(listener: TcpListener, mailroom: Arc<dyn Mailroom>, stop: CancellationToken) {
    let sessions = TaskTracker::new();
    let peers = Arc::new(Peers::default());
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => break,
        };
        let Ok((stream, from)) = accepted else {
            // Out of descriptors, most likely: those under way will give some back.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let Some(place) = peers.enter(from.ip(), SMTP_SESSIONS, SMTP_SESSIONS_PER_PEER) else {
            sessions.spawn(session::turn_away(stream));
            continue;
        };
        let (mailroom, peers, stop) = (mailroom.clone(), peers.clone(), stop.clone());
        sessions.spawn(async move {
            let talking = session::talk(stream, from.ip(), mailroom, peers, stop);
            let _ = tokio::time::timeout(Duration::from_secs(SMTP_SESSION_S), talking).await;
            drop(place);
        });
    }
    sessions.close();
    let _ = tokio::time::timeout(Duration::from_secs(2), sessions.wait()).await;
}

/// For logs: who it was, and nothing of what was said.
fn told(peer: IpAddr, event: &str) {
    tracing::info!(%peer, event, "mail");
}
