//! Requests that are owed to someone, and how they went.

use askama::Template;
use wire::{DeliveryView, Page};

use crate::frame::Frame;
use crate::html;

#[derive(Debug, Template)]
#[template(path = "deliveries.html")]
pub struct Deliveries {
    pub frame: Frame,
    pub state: String,
    pub job: String,
    pub page: Page<DeliveryView>,
}

impl Deliveries {
    fn states(&self) -> [&'static str; 5] {
        ["", "pending", "delivering", "delivered", "failed"]
    }

    fn is_asked(&self, state: &str) -> bool {
        self.state == state
    }

    fn address(&self, state: &str, cursor: &str) -> String {
        let pairs = [("state", state), ("job", self.job.as_str()), ("cursor", cursor)];
        let pairs = pairs.iter().filter(|(_, value)| !value.is_empty());
        let pairs: Vec<String> = pairs.map(|(name, value)| format!("{name}={}", html::segment(value))).collect();
        format!("deliveries?{}", pairs.join("&"))
    }
}

/// Only what failed or was delivered can be sent again.
fn has_ended(delivery: &DeliveryView) -> bool {
    delivery.ended_at.is_some()
}
