//! Deliveries: outgoing HTTP requests (webhooks and HTTP targets) as durable rows. `insert` writes them in the transaction
//! of their cause. The engine's task `deliver` claims, sends and settles them on any number of nodes.

pub(crate) mod adaptive_concurrency;
pub mod claim;
pub mod insert;
pub(crate) mod letters;
pub mod list;
pub mod prune;
pub mod redeliver;
pub mod settle;

pub use insert::{NewDelivery, insert};

/// State of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryState {
    /// Waiting for its first or next attempt.
    Pending,
    /// An attempt is in progress.
    Delivering,
    Delivered,
    /// Out of attempts.
    Failed,
}

impl DeliveryState {
    pub const ALL: [Self; 4] = [Self::Pending, Self::Delivering, Self::Delivered, Self::Failed];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Delivering => "delivering",
            Self::Delivered => "delivered",
            Self::Failed => "failed",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
}
