//! Spans of traced jobs: the wait in the queue, each attempt and its steps. A node records the attempts that are claimed and
//! settled through it; an attempt that is settled on another node has no span.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use domain::TraceContext;
use domain::limits::ATTEMPT_SPANS;
use engine::trace_spans::{context_of, parent, tracer};
use opentelemetry::KeyValue;
use opentelemetry::global::BoxedSpan;
use opentelemetry::trace::{Span, SpanKind, Status, Tracer};
use uuid::Uuid;
use wire::Timestamp;

/// An attempt that is not settled after this time is forgotten if there are many.
const FORGET_AFTER: Duration = Duration::from_secs(3_600);

/// The attempts that are in progress, by job and epoch.
#[derive(Clone, Default)]
pub struct AttemptSpans {
    open: Arc<Mutex<HashMap<(Uuid, i64), OpenAttempt>>>,
}

struct OpenAttempt {
    span: BoxedSpan,
    context: TraceContext,
    since: Instant,
}

impl AttemptSpans {
    /// Records the wait of a claimed job and starts the span of its attempt. The worker gets the context of that span.
    pub(crate) fn claimed(&self, job: &mut wire::ClaimedJob) {
        let Some(context) = job.traceparent.as_deref().and_then(TraceContext::parse) else { return };
        let (tracer, parent) = (tracer(), parent(&context));
        let attributes = [
            KeyValue::new("windlass.job.id", job.id.to_string()),
            KeyValue::new("windlass.queue", job.queue.clone()),
            KeyValue::new("windlass.attempt", job.attempt),
        ];
        let wait = tracer.span_builder(format!("queue {}", job.queue)).with_attributes(attributes.clone());
        wait.with_start_time(system_time(job.created_at)).start_with_context(&tracer, &parent).end();
        let attempt = tracer.span_builder(format!("attempt {}", job.kind)).with_kind(SpanKind::Consumer);
        let span = attempt.with_attributes(attributes).start_with_context(&tracer, &parent);
        let Some(context) = context_of(&span) else { return };
        job.traceparent = Some(context.as_str().to_owned());
        let mut open = self.open.lock().expect("lock poisoned");
        if open.len() >= ATTEMPT_SPANS {
            open.retain(|_, attempt| attempt.since.elapsed() < FORGET_AFTER);
        }
        if open.len() < ATTEMPT_SPANS {
            open.insert((job.id, job.epoch), OpenAttempt { span, context, since: Instant::now() });
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.open.lock().expect("lock poisoned").is_empty()
    }

    /// Records a finished step of an attempt.
    pub(crate) fn step_recorded(&self, (job, epoch): (Uuid, i64), key: &str, duration_ms: i64, now: Timestamp) {
        let open = self.open.lock().expect("lock poisoned");
        let Some(attempt) = open.get(&(job, epoch)) else { return };
        let (tracer, end) = (tracer(), system_time(now));
        let start = end.checked_sub(Duration::from_millis(duration_ms.max(0) as u64)).unwrap_or(end);
        let step = tracer.span_builder(format!("step {key}")).with_start_time(start);
        step.start_with_context(&tracer, &parent(&attempt.context)).end_with_timestamp(end);
    }

    /// Ends the span of an attempt.
    pub(crate) fn settled(&self, job: Uuid, epoch: i64, outcome: &'static str) {
        let Some(mut attempt) = self.open.lock().expect("lock poisoned").remove(&(job, epoch)) else { return };
        attempt.span.set_attribute(KeyValue::new("windlass.outcome", outcome));
        if outcome == "fail" {
            attempt.span.set_status(Status::error("the attempt failed"));
        }
        attempt.span.end();
    }
}

fn system_time(at: Timestamp) -> SystemTime {
    SystemTime::from(at)
}
