//! A small SMTP server for incoming mail, off by default. Each accepted message becomes one event. Started by `app`.
//!
//! It accepts mail for addresses that a trigger uses, within limits of size and rate, and replies 250 only after the
//! event is durable. It does not relay or send mail. Put a mail server in front of it to receive mail from the
//! internet.

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

/// Destination of accepted mail.
pub trait Mailroom: Send + Sync + 'static {
    /// True if a trigger accepts mail for the address.
    fn accepts(&self, address: String) -> BoxFuture<Result<bool, MailroomError>>;
    /// Returns once the mail is durable.
    fn deliver(&self, mail: Mail) -> BoxFuture<Result<(), MailroomError>>;
}

/// A temporary failure: the sender is asked to retry.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct MailroomError(pub String);

/// Accepts connections until `stop` is canceled. Open sessions then get two seconds to finish the message they are
/// receiving.
pub async fn serve(listener: TcpListener, mailroom: Arc<dyn Mailroom>, stop: CancellationToken) {
    let sessions = TaskTracker::new();
    let peers = Arc::new(Peers::default());
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => break,
        };
        let Ok((stream, from)) = accepted else {
            // Usually out of file descriptors; open sessions will free some.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let Some(permit) = peers.enter(from.ip(), SMTP_SESSIONS, SMTP_SESSIONS_PER_PEER) else {
            sessions.spawn(session::refuse(stream));
            continue;
        };
        let (mailroom, peers, stop) = (mailroom.clone(), peers.clone(), stop.clone());
        sessions.spawn(async move {
            let session_future = session::talk(stream, from.ip(), mailroom, peers, stop);
            let _ = tokio::time::timeout(Duration::from_secs(SMTP_SESSION_S), session_future).await;
            drop(permit);
        });
    }
    sessions.close();
    let _ = tokio::time::timeout(Duration::from_secs(2), sessions.wait()).await;
}

/// Logs a session event without any content.
fn log_event(peer: IpAddr, event: &str) {
    tracing::info!(%peer, event, "mail");
}
