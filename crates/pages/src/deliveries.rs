//! Requests that are owed to someone, and how they went.

use askama::Template;
use wire::{DeliveryAttemptView, DeliveryDetails, DeliveryView, Page};

use crate::frame::Frame;
use crate::html::{self, Markup};

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

#[derive(Debug, Template)]
#[template(path = "delivery.html")]
pub struct DeliveryPage {
    pub frame: Frame,
    pub delivery: DeliveryDetails,
}

impl DeliveryPage {
    fn facts(&self) -> Vec<(&'static str, Markup)> {
        let (delivery, root) = (&self.delivery.delivery, &self.frame.root);
        let text = |text: &str| Markup::new(html::escape(text));
        let mut facts = vec![
            (
                "To",
                Markup::new(format!("{} <code>{}</code>", html::escape(&delivery.method), html::escape(&delivery.url))),
            ),
            ("Attempts", Markup::new(format!("{} of {}", delivery.attempt, delivery.max_attempts))),
            ("Message id", Markup::new(format!("<code>{}</code>", html::escape(&delivery.message_id)))),
            ("Created", html::time(&delivery.created_at)),
        ];
        facts.extend(delivery.next_attempt_at.as_ref().map(|at| ("Next attempt", html::ago(at))));
        facts.extend(delivery.circuit_open_until.as_ref().map(|at| ("Nothing is sent there before", html::time(at))));
        facts.extend(delivery.ended_at.as_ref().map(|at| ("Ended", html::time(at))));
        facts.extend(delivery.job_id.map(|job| {
            let link = format!("<a class=\"id\" href=\"{root}jobs/{job}\" title=\"{job}\">{}</a>", html::short(&job));
            ("Job", Markup::new(link))
        }));
        facts.extend(delivery.trigger_id.map(|trigger| {
            (
                "Trigger",
                Markup::new(format!("<a href=\"{root}triggers#trigger-{trigger}\">{}</a>", html::short(&trigger))),
            )
        }));
        facts.extend(delivery.event_id.map(|event| ("Event", text(&event.to_string()))));
        facts
    }

    /// Its body tells of results, and not everyone may read those.
    fn hides_body(&self) -> bool {
        self.delivery.body.get() == "null"
    }
}

/// Whether the receiver took it.
fn took(attempt: &DeliveryAttemptView) -> bool {
    attempt.error.is_none() && attempt.status.is_some_and(|status| (200..300).contains(&status))
}

/// Only what failed or was delivered can be sent again.
fn has_ended(delivery: &DeliveryView) -> bool {
    delivery.ended_at.is_some()
}
