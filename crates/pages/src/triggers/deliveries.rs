//! The deliveries page and the page of one delivery.

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

    fn is_selected(&self, state: &str) -> bool {
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
        if delivery.ended_at.is_none() {
            facts.push(("Next attempt", next_attempt(delivery)));
        }
        facts.extend(delivery.circuit_open_until.as_ref().map(|at| ("Circuit open until", html::time(at))));
        facts.extend(delivery.ended_at.as_ref().map(|at| ("Ended", html::time(at))));
        facts.extend(delivery.job_id.map(|job| {
            let link = format!("<a class=\"id\" href=\"{root}jobs/{job}\" title=\"{job}\">{}</a>", html::short(&job));
            ("Job", Markup::new(link))
        }));
        facts.extend(delivery.trigger_id.map(|id| ("Trigger", self.frame.trigger(&id, &html::short(&id)))));
        facts.extend(delivery.event_id.map(|event| ("Event", text(&event.to_string()))));
        facts
    }

    /// True if the body is redacted: it contains results, which the reader may not see.
    fn hides_body(&self) -> bool {
        self.delivery.body.get() == "null"
    }
}

/// The time of the next attempt, or the end of the open circuit if that is later.
fn next_attempt(delivery: &DeliveryView) -> Markup {
    let open_until = delivery.circuit_open_until.filter(|_| delivery.ended_at.is_none());
    match (delivery.next_attempt_at, open_until) {
        (next, Some(until)) if next.is_none_or(|next| next <= until) => {
            Markup::new(format!("circuit open, {}", html::ago(&until)))
        }
        (next, _) => html::opt_ago(&next),
    }
}

/// True if the receiver accepted the request.
fn succeeded(attempt: &DeliveryAttemptView) -> bool {
    attempt.error.is_none() && attempt.status.is_some_and(|status| (200..300).contains(&status))
}

/// Only a delivery that has ended can be sent again.
fn has_ended(delivery: &DeliveryView) -> bool {
    delivery.ended_at.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_attempt_is_the_later_of_its_time_and_the_end_of_an_open_circuit() {
        let shown = |next: &str, until: &str| {
            let delivery = format!(
                r#"{{"id":"00000000-0000-0000-0000-000000000001","message_id":"m","state":"pending","source":"job","op":"failed",
                "job_id":null,"trigger_id":null,"event_id":null,"url":"https://example.com/","method":"POST","attempt":1,
                "max_attempts":8,"status":500,"error":null,"created_at":"2026-01-01T00:00:00Z","next_attempt_at":{next},
                "circuit_open_until":{until},"ended_at":null}}"#
            );
            next_attempt(&serde_json::from_str(&delivery).expect("a delivery")).to_string()
        };
        let [early, late] = [r#""2026-01-01T00:01:00Z""#, r#""2026-01-01T00:02:00Z""#];
        assert!(shown(early, late).starts_with("circuit open") && shown(early, late).contains("00:02:00"));
        assert!(shown(late, early).starts_with("<time") && shown(late, early).contains("00:02:00"));
        assert!(shown(early, "null").contains("00:01:00") && shown("null", "null").contains("none"));
    }
}
