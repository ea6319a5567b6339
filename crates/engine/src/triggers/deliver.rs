//! Sends webhook deliveries: claims due deliveries, sends each in a task of its own, and records the outcome.
//!
//! A run only starts requests and returns, and concurrency per endpoint is limited. So a slow receiver delays only
//! itself.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use domain::TraceContext;
use domain::access::principal::EffectTarget;
use domain::limits::{DELIVERIES_IN_FLIGHT, RESPONSE_EXCERPT_BYTES};
use opentelemetry::KeyValue;
use opentelemetry::global::BoxedSpan;
use opentelemetry::trace::{Span, SpanKind, Tracer};
use store::db::notifier::Topic;
use store::triggers::deliveries::claim::{ClaimedDelivery, Signing};
use store::triggers::deliveries::settle::{Blame, CompletedAttempt, DeliveryOutcome, RetryAdvice, SettledDelivery};
use store::{Store, StoreError};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::outbound::{Outbound, OutboundError, OutboundRequest, OutboundResponse, sign};
use crate::task::{Task, TaskOutcome};
use crate::trace_spans;
use crate::triggers::plan;

pub(crate) struct Deliver {
    pub(crate) outbound: Outbound,
    /// Runs the requests, so that a stop waits for them.
    pub(crate) tracker: TaskTracker,
    pub(crate) stop: CancellationToken,
    /// Requests in flight on this node, by endpoint.
    pub(crate) in_flight: Arc<Mutex<HashMap<i64, usize>>>,
}

impl Task for Deliver {
    const NAME: &'static str = "deliver";
    const EVERY: Duration = Duration::from_millis(500);
    const WAKE: Option<Topic> = Some(Topic::Deliveries);

    async fn run(&self, store: &Store) -> Result<TaskOutcome, StoreError> {
        let in_flight = self.in_flight.lock().expect("lock poisoned").clone();
        let capacity = DELIVERIES_IN_FLIGHT.saturating_sub(in_flight.values().sum());
        if capacity == 0 || self.stop.is_cancelled() {
            return Ok(TaskOutcome::nothing());
        }
        let claimed = store.claim_deliveries(capacity, in_flight).await?;
        let waiting_s = claimed.oldest_due_at.map_or(0.0, |at| store.clock().now().ms_since(at).max(0) as f64 / 1e3);
        metrics::gauge!("windlass_deliveries_oldest_due_seconds").set(waiting_s);
        metrics::gauge!("windlass_circuits_open").set(claimed.open_circuits as f64);
        let count = claimed.deliveries.len();
        for delivery in claimed.deliveries {
            let permit = InFlightPermit::acquire(&self.in_flight, delivery.endpoint, store);
            let (outbound, store) = (self.outbound.clone(), store.clone());
            self.tracker.spawn(async move {
                deliver(&outbound, &store, delivery).await;
                drop(permit);
            });
        }
        Ok(if count > 0 { TaskOutcome::work(format!("{count} requests sent")) } else { TaskOutcome::nothing() })
    }
}

/// Counts a request as in flight. Dropping it wakes the task, which then has capacity again.
struct InFlightPermit {
    in_flight: Arc<Mutex<HashMap<i64, usize>>>,
    endpoint: i64,
    store: Store,
}

impl InFlightPermit {
    fn acquire(in_flight: &Arc<Mutex<HashMap<i64, usize>>>, endpoint: i64, store: &Store) -> Self {
        *in_flight.lock().expect("lock poisoned").entry(endpoint).or_default() += 1;
        Self { in_flight: in_flight.clone(), endpoint, store: store.clone() }
    }
}

impl Drop for InFlightPermit {
    fn drop(&mut self) {
        let mut in_flight = self.in_flight.lock().expect("lock poisoned");
        if let Some(count) = in_flight.get_mut(&self.endpoint) {
            *count -= 1;
            if *count == 0 {
                in_flight.remove(&self.endpoint);
            }
        }
        self.store.notifier().deliveries_changed();
    }
}

/// Checks the current rights of the principal that registered the trigger, at each attempt.
fn allowed(delivery: &ClaimedDelivery) -> Result<(), OutboundError> {
    let Some((source, principal, rights)) = &delivery.run_of else { return Ok(()) };
    match rights.missing_right(*source, EffectTarget::Outside) {
        Some(right) => Err(OutboundError::Refused(plan::missing_right_message(principal, right))),
        None => Ok(()),
    }
}

/// Starts the span of an attempt that belongs to a trace, and passes its context on to the receiver.
fn start_span(delivery: &mut ClaimedDelivery) -> Option<BoxedSpan> {
    let (_, value) = delivery.headers.iter_mut().find(|(name, _)| name == "traceparent")?;
    let (tracer, parent) = (trace_spans::tracer(), trace_spans::parent(&TraceContext::parse(value)?));
    let attributes = [
        KeyValue::new("windlass.delivery.id", delivery.id.to_string()),
        KeyValue::new("windlass.attempt", i64::from(delivery.attempt)),
    ];
    let span = tracer.span_builder(format!("webhook {}", delivery.method)).with_kind(SpanKind::Client);
    let span = span.with_attributes(attributes).start_with_context(&tracer, &parent);
    if let Some(context) = trace_spans::context_of(&span) {
        *value = context.as_str().to_owned();
    }
    Some(span)
}

/// Makes one attempt and records its outcome.
async fn deliver(outbound: &Outbound, store: &Store, mut delivery: ClaimedDelivery) {
    let span = start_span(&mut delivery);
    let (at, started) = (store.clock().now(), Instant::now());
    let answer = match allowed(&delivery).and_then(|()| request(&delivery, at.millis() / 1_000)) {
        Ok(request) => outbound.send(request).await,
        Err(error) => Err(error),
    };
    span.into_iter().for_each(|mut span| span.end());
    let took = started.elapsed();
    metrics::histogram!("windlass_delivery_seconds").record(took.as_secs_f64());
    let (status, response) = match &answer {
        Ok(answer) => (Some(answer.status), Some(excerpt(&answer.body)).filter(|text| !text.is_empty())),
        Err(_) => (None, None),
    };
    let attempt = CompletedAttempt {
        delivery: delivery.id,
        attempt: delivery.attempt,
        at,
        duration_ms: took.as_millis() as i64,
        status,
        response,
        outcome: outcome_of(answer),
    };
    // Retries the write, so that a short database outage does not cause a duplicate delivery.
    for pause_ms in [0, 200, 1_000, 3_000] {
        tokio::time::sleep(Duration::from_millis(pause_ms)).await;
        match store.settle_delivery(attempt.clone()).await {
            Ok(settled) => return count(settled),
            Err(error) => {
                tracing::warn!(delivery = %delivery.id, %error, "failed to record a delivery attempt");
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

fn request(delivery: &ClaimedDelivery, now_s: i64) -> Result<OutboundRequest, OutboundError> {
    let secrets = match &delivery.secrets {
        Signing::With(secrets) => secrets,
        // A receiver must not get an unsigned message: it could accept it.
        Signing::Impossible { reason } => return Err(OutboundError::Unsigned(reason.clone())),
    };
    let id = sign::message_id(delivery.id);
    let mut headers = vec![("content-type".to_owned(), "application/json".to_owned())];
    headers.extend(delivery.headers.iter().cloned());
    headers.push(("webhook-id".into(), id.clone()));
    headers.push(("webhook-timestamp".into(), now_s.to_string()));
    headers.extend(sign::signature(secrets, &id, now_s, &delivery.body).map(|s| ("webhook-signature".into(), s)));
    headers.push(("windlass-depth".into(), delivery.depth.to_string()));
    Ok(OutboundRequest {
        url: delivery.url.clone(),
        method: delivery.method.clone(),
        headers,
        body: delivery.body.clone(),
        timeout: Duration::from_millis(delivery.timeout_ms.max(0) as u64),
        max_response_bytes: RESPONSE_EXCERPT_BYTES,
    })
}

/// The outcome of an attempt, for the delivery and for its receiver's circuit.
fn outcome_of(answer: Result<OutboundResponse, OutboundError>) -> DeliveryOutcome {
    let failed = |error: String, blame, next| DeliveryOutcome::Failed { error, blame, next };
    let again = RetryAdvice::Allowed { not_before_s: None };
    match answer {
        Ok(OutboundResponse { status: 200..=299, .. }) => DeliveryOutcome::Delivered,
        Ok(OutboundResponse { status: status @ 300..=399, .. }) => {
            failed(format!("the receiver answered {status}; redirects are not followed"), Blame::Request, again)
        }
        Ok(OutboundResponse { status: 410, .. }) => {
            failed("the receiver answered 410 Gone".into(), Blame::Request, RetryAdvice::Never)
        }
        Ok(OutboundResponse { status, retry_after_s, .. }) => {
            let blame = if status == 429 || status >= 500 { Blame::Receiver } else { Blame::Request };
            failed(
                format!("the receiver answered {status}"),
                blame,
                RetryAdvice::Allowed { not_before_s: retry_after_s },
            )
        }
        Err(error @ (OutboundError::Invalid(_) | OutboundError::Refused(_))) => {
            failed(error.to_string(), Blame::Request, RetryAdvice::Never)
        }
        Err(error @ OutboundError::Unsigned(_)) => failed(error.to_string(), Blame::Request, again),
        Err(error) => failed(error.to_string(), Blame::Receiver, again),
    }
}

/// The response body as text that can be stored and shown.
fn excerpt(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let is_unsafe = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    text.chars().map(|c| if is_unsafe(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_excerpt_replaces_bytes_that_are_not_text() {
        assert_eq!(excerpt(b"ok\0\x1b[31m\xff\n"), "ok\u{fffd}\u{fffd}[31m\u{fffd}\n");
    }
}
