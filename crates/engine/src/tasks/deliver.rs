//! Sends what is owed: claims deliveries that are due, sends each in a task of its own, and writes down how it went.
//!
//! A slow receiver holds up nothing but itself: a round only starts requests and returns, few to one endpoint.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use domain::limits::{DELIVERIES_UNDER_WAY, RESPONSE_EXCERPT_BYTES};
use domain::principal::Reach;
use store::deliveries::claim::{ClaimedDelivery, Signing};
use store::deliveries::settle::{Attempted, Blame, Next, SettledDelivery, Verdict};
use store::hints::Topic;
use store::{Store, StoreError};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::outbound::{Answer, Outbound, OutboundError, Request, sign};
use crate::task::{Done, Task};
use crate::trigger;

pub(crate) struct Deliver {
    pub(crate) outbound: Outbound,
    /// Where the requests run, so that a stop waits for them a little.
    pub(crate) tracker: TaskTracker,
    pub(crate) stop: CancellationToken,
    /// Requests of this node, by endpoint.
    pub(crate) under_way: Arc<Mutex<HashMap<i64, usize>>>,
}

impl Task for Deliver {
    const NAME: &'static str = "deliver";
    const EVERY: Duration = Duration::from_millis(500);
    const WAKE: Option<Topic> = Some(Topic::Deliveries);

    async fn run(&self, store: &Store) -> Result<Done, StoreError> {
        let under_way = self.under_way.lock().expect("nobody panics with the map in hand").clone();
        let room = DELIVERIES_UNDER_WAY.saturating_sub(under_way.values().sum());
        if room == 0 || self.stop.is_cancelled() {
            return Ok(Done::nothing());
        }
        let claimed = store.claim_deliveries(room, under_way).await?;
        let waiting_s = claimed.oldest_due_at.map_or(0.0, |at| store.clock().now().ms_since(at).max(0) as f64 / 1e3);
        metrics::gauge!("windlass_deliveries_oldest_due_seconds").set(waiting_s);
        metrics::gauge!("windlass_circuits_open").set(claimed.open_circuits as f64);
        let count = claimed.deliveries.len();
        for delivery in claimed.deliveries {
            let place = Place::take(&self.under_way, delivery.endpoint, store);
            let (outbound, store) = (self.outbound.clone(), store.clone());
            self.tracker.spawn(async move {
                deliver(&outbound, &store, delivery).await;
                drop(place);
            });
        }
        Ok(if count > 0 { Done::work(format!("{count} requests begun")) } else { Done::nothing() })
    }
}

/// A request's place among those under way. Giving it back wakes the task: there is room again.
struct Place {
    under_way: Arc<Mutex<HashMap<i64, usize>>>,
    endpoint: i64,
    store: Store,
}

impl Place {
    fn take(under_way: &Arc<Mutex<HashMap<i64, usize>>>, endpoint: i64, store: &Store) -> Self {
        *under_way.lock().expect("nobody panics with the map in hand").entry(endpoint).or_default() += 1;
        Self { under_way: under_way.clone(), endpoint, store: store.clone() }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut under_way = self.under_way.lock().expect("nobody panics with the map in hand");
        if let Some(count) = under_way.get_mut(&self.endpoint) {
            *count -= 1;
            if *count == 0 {
                under_way.remove(&self.endpoint);
            }
        }
        self.store.hints().deliveries_changed();
    }
}

/// A trigger's call has the rights that whoever registered the trigger has now, at each attempt (T2).
fn allowed(delivery: &ClaimedDelivery) -> Result<(), OutboundError> {
    let Some((source, principal, standing)) = &delivery.run_of else { return Ok(()) };
    match standing.lacks(*source, Reach::Outside) {
        Some(right) => Err(OutboundError::Refused(trigger::lacks(principal, right))),
        None => Ok(()),
    }
}

/// One attempt, from claim to settle.
async fn deliver(outbound: &Outbound, store: &Store, delivery: ClaimedDelivery) {
    let (at, started) = (store.clock().now(), Instant::now());
    let answer = match allowed(&delivery).and_then(|()| request(&delivery, at.millis() / 1_000)) {
        Ok(request) => outbound.send(request).await,
        Err(error) => Err(error),
    };
    let took = started.elapsed();
    metrics::histogram!("windlass_delivery_seconds").record(took.as_secs_f64());
    let (status, response) = match &answer {
        Ok(answer) => (Some(answer.status), Some(excerpt(&answer.body)).filter(|text| !text.is_empty())),
        Err(_) => (None, None),
    };
    let attempted = Attempted {
        delivery: delivery.id,
        attempt: delivery.attempt,
        at,
        duration_ms: took.as_millis() as i64,
        status,
        response,
        verdict: judge(answer),
    };
    // A database that is away for a moment must not make a delivered message come twice.
    for pause_ms in [0, 200, 1_000, 3_000] {
        tokio::time::sleep(Duration::from_millis(pause_ms)).await;
        match store.settle_delivery(attempted.clone()).await {
            Ok(settled) => return count(settled),
            Err(error) => {
                tracing::warn!(delivery = %delivery.id, %error, "the end of an attempt could not be written down");
            }
        }
    }
}

fn count(settled: SettledDelivery) {
    let outcome = match settled {
        SettledDelivery::Delivered => "delivered",
        SettledDelivery::Waiting => "retried",
        SettledDelivery::Failed => "failed",
        SettledDelivery::Lost => "lost",
    };
    metrics::counter!("windlass_delivery_attempts_total", "outcome" => outcome).increment(1);
}

fn request(delivery: &ClaimedDelivery, now_s: i64) -> Result<Request, OutboundError> {
    let secrets = match &delivery.secrets {
        Signing::With(secrets) => secrets,
        // Unsigned it would be refused, or worse, taken.
        Signing::Impossible { reason } => return Err(OutboundError::Unsigned(reason.clone())),
    };
    let id = sign::message_id(delivery.id);
    let mut headers = vec![("content-type".to_owned(), "application/json".to_owned())];
    headers.extend(delivery.headers.iter().cloned());
    headers.push(("webhook-id".into(), id.clone()));
    headers.push(("webhook-timestamp".into(), now_s.to_string()));
    headers.extend(sign::signature(secrets, &id, now_s, &delivery.body).map(|s| ("webhook-signature".into(), s)));
    headers.push(("windlass-depth".into(), delivery.depth.to_string()));
    Ok(Request {
        url: delivery.url.clone(),
        method: delivery.method.clone(),
        headers,
        body: delivery.body.clone(),
        timeout: Duration::from_millis(delivery.timeout_ms.max(0) as u64),
        answer_bytes: RESPONSE_EXCERPT_BYTES,
    })
}

/// What an answer means for the delivery and for its receiver.
fn judge(answer: Result<Answer, OutboundError>) -> Verdict {
    let failed = |error: String, blame, next| Verdict::Failed { error, blame, next };
    let again = Next::Again { not_before_s: None };
    match answer {
        Ok(Answer { status: 200..=299, .. }) => Verdict::Delivered,
        Ok(Answer { status: status @ 300..=399, .. }) => {
            failed(format!("the receiver answered {status}, and redirects are not followed"), Blame::Request, again)
        }
        Ok(Answer { status: 410, .. }) => {
            failed("the receiver answered 410: it wants no more of these".into(), Blame::Request, Next::Never)
        }
        Ok(Answer { status, retry_after_s, .. }) => {
            let blame = if status == 429 || status >= 500 { Blame::Receiver } else { Blame::Request };
            failed(format!("the receiver answered {status}"), blame, Next::Again { not_before_s: retry_after_s })
        }
        Err(error @ (OutboundError::Invalid(_) | OutboundError::Refused(_))) => {
            failed(error.to_string(), Blame::Request, Next::Never)
        }
        Err(error @ OutboundError::Unsigned(_)) => failed(error.to_string(), Blame::Request, again),
        Err(error) => failed(error.to_string(), Blame::Receiver, again),
    }
}

/// The beginning of an answer as text that can be stored and shown.
fn excerpt(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let odd = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    text.chars().map(|c| if odd(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_any_bytes_becomes_text() {
        assert_eq!(excerpt(b"ok\0\x1b[31m\xff\n"), "ok\u{fffd}\u{fffd}[31m\u{fffd}\n");
    }
}
