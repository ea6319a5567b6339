//! Deliveries: HTTP requests that are owed to someone, as durable rows (Q10). Whoever owes one calls `insert` in its own
//! transaction; the engine's task `deliver` claims, sends and settles them on any number of nodes.

pub mod claim;
pub mod insert;
pub(crate) mod letters;
pub mod list;
pub(crate) mod notices;
pub(crate) mod paces;
pub mod prune;
pub mod redeliver;
pub mod settle;

pub use insert::{NewDelivery, insert};

/// How a delivery stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryState {
    /// Waiting for its first or next attempt.
    Pending,
    /// An attempt is under way.
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
