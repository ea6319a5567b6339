//! Signals as server-sent events: of one job, and of all jobs that match a filter.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use domain::limits::STREAM_WINDOW;
use domain::{JobId, Time};
use futures_util::future::BoxFuture;
use futures_util::stream::{Stream, unfold};
use serde::Deserialize;
use store::queue::list::JobFilter;
use store::signals::read::{SignalRead, SignalSource};
use tokio::sync::broadcast;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::SignalView;

use crate::access::auth::Principal;
use crate::error::ApiError;
use crate::extract::{Params, PathJob, header};
use crate::signals::streams::SignalWatch;
use crate::signals::view::render;
use crate::state::AppState;
use crate::validate::query::{label, name, state as job_state};

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const KEEP_ALIVE: Duration = Duration::from_secs(15);
const SCAN_INTERVAL: Duration = Duration::from_secs(1);
/// Changes within this time before the last event are sent again on reconnect. A change is stamped a moment before it
/// is committed and becomes visible.
const OVERLAP_S: i64 = 10;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(job)).routes(routes!(all))
}

/// Stream the signal of a job until the job ends.
///
/// Sends an event `signal` for each change. The event id is the signal's version. Returns 503 if the node has too many
/// open streams.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/stream", tag = "streams",
    params(("id" = Uuid, Path), ("Last-Event-ID" = Option<i64>, Header, description = "Resume after this version")),
    responses((status = 200, content_type = "text/event-stream", body = SignalView),
              (status = 204, description = "The job has ended and the client has its last signal")))]
async fn job(
    State(state): State<AppState>,
    principal: Principal,
    PathJob(id): PathJob,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let seen = last_event_id(&headers)?;
    let source = match state.store.signal_source(principal.tenant, id).await? {
        SignalRead::Found(source) if principal.sees(&source.job) => *source,
        SignalRead::Pruned if principal.sees_all() => return Ok(StatusCode::NO_CONTENT.into_response()),
        _ => return Err(ApiError::not_found("job")),
    };
    if source.job.state.is_terminal() && seen == Some(source.job.version) {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let too_many = || ApiError::too_many_streams();
    let watch = state.streams.watch(id, source.job.version).ok_or_else(too_many)?;
    let (stop, sent) = (state.until_ended(&principal), seen.map(|version| (version, None)));
    let stream = JobStream { state, principal, stop, source, watch, sent, ended: false };
    Ok(sse(unfold(stream, JobStream::next)))
}

fn sse(events: impl Stream<Item = Result<Event, Infallible>> + Send + 'static) -> Response {
    let headers = [("cache-control", "no-store"), ("x-accel-buffering", "no")];
    (headers, Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE))).into_response()
}

/// Returns the text of a signal and the event that carries it.
fn event(view: &SignalView, id: i64) -> (String, Event) {
    let body = serde_json::to_string(view).expect("plain data has a JSON form");
    (body.clone(), Event::default().event("signal").id(id.to_string()).data(body))
}

fn last_event_id(headers: &HeaderMap) -> Result<Option<i64>, ApiError> {
    Ok(header(headers, &LAST_EVENT_ID)?.and_then(|text| text.parse().ok()))
}

/// One client that follows one job.
struct JobStream {
    state: AppState,
    principal: Principal,
    /// Completes when the server stops or the client's token ends.
    stop: BoxFuture<'static, ()>,
    source: SignalSource,
    watch: SignalWatch,
    /// The version that the client has, and its text if this stream sent it.
    sent: Option<(i64, Option<String>)>,
    ended: bool,
}

impl JobStream {
    /// Returns the next event. Called only when the client can accept one.
    async fn next(mut self) -> Option<(Result<Event, Infallible>, Self)> {
        if self.ended {
            return None;
        }
        loop {
            let current = self.source.job.version;
            let rendered = render(&self.state.store, &self.principal, self.source.clone()).await.ok();
            if let Some(rendered) = rendered {
                let (body, event) = event(&rendered.view, rendered.view.version);
                let already_sent = match &self.sent {
                    None => false,
                    Some((version, None)) => *version == current,
                    Some((version, Some(text))) => *version == current && *text == body,
                };
                if !already_sent {
                    self.sent = Some((current, Some(body)));
                    self.ended = self.source.job.state.is_terminal();
                    return Some((Ok(event), self));
                }
                if let Some((_, text @ None)) = &mut self.sent {
                    *text = Some(body);
                }
            }
            let every = self.state.streams.overlay_interval();
            tokio::select! {
                changed = self.watch.version.changed() => changed.ok()?,
                () = tokio::time::sleep(every) => {}
                () = &mut self.stop => return None,
            }
            let version = *self.watch.version.borrow_and_update();
            if version != self.source.job.version {
                // After an error, keep the stream open. A pruned job is not found, and the stream ends.
                match self.state.store.signal_source(self.principal.tenant, self.source.job.id).await {
                    Ok(SignalRead::Found(source)) => self.source = *source,
                    Ok(_) => return None,
                    Err(_) => {}
                }
            }
        }
    }
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct StreamQuery {
    /// Only jobs of this queue.
    queue: Option<String>,
    /// Only jobs of this kind.
    kind: Option<String>,
    /// Only jobs on this subject.
    subject: Option<String>,
    /// Only jobs in this state.
    state: Option<String>,
    /// Only jobs of this run.
    run: Option<String>,
}

/// Stream the signals of all matching jobs: first the current ones, then each change.
///
/// A stream carries states, not every intermediate step: a slow or reconnecting client gets the newest state. The event
/// id is the time of the change. A client that reconnects with the last id gets what changed since then or shortly
/// before.
#[utoipa::path(get, path = "/api/v1/stream", tag = "streams",
    params(StreamQuery, ("Last-Event-ID" = Option<i64>, Header, description = "Resume after this event")),
    responses((status = 200, content_type = "text/event-stream", body = SignalView)))]
async fn all(
    State(state): State<AppState>,
    principal: Principal,
    Params(query): Params<StreamQuery>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let filter = principal.narrow(JobFilter {
        state: job_state("state", &query.state)?,
        queue: name("queue", &query.queue)?,
        kind: name("kind", &query.kind)?,
        subject: label("subject", &query.subject)?,
        run: label("run", &query.run)?,
        without_content: true,
        ..JobFilter::default()
    });
    let stream = FilteredStream {
        filter,
        changes: state.store.notifier().changes(),
        stop: state.until_ended(&principal),
        state,
        principal,
        seen: HashMap::new(),
        resume_after: last_event_id(&headers)?.map(|last| Time::from_micros(last).plus_s(-OVERLAP_S)),
        waiting: VecDeque::new(),
        scanned_at: None,
    };
    Ok(sse(unfold(stream, FilteredStream::next)))
}

/// One client that follows many jobs.
struct FilteredStream {
    state: AppState,
    principal: Principal,
    stop: BoxFuture<'static, ()>,
    filter: JobFilter,
    changes: broadcast::Receiver<JobId>,
    /// The versions that were sent.
    seen: HashMap<JobId, i64>,
    /// The client received older changes on an earlier stream.
    resume_after: Option<Time>,
    /// Jobs with a signal to send, in the order of their changes, each with the time at which the change was
    /// noticed. An event carries at most that time, even if the job has changed again: a later one would make a
    /// reconnecting client skip the changes queued behind it.
    waiting: VecDeque<(JobId, Time)>,
    scanned_at: Option<Instant>,
}

impl FilteredStream {
    async fn next(mut self) -> Option<(Result<Event, Infallible>, Self)> {
        loop {
            while let Some((job, changed_at)) = self.waiting.pop_front() {
                if let Some(event) = self.signal(job, changed_at).await {
                    return Some((Ok(event), self));
                }
            }
            if self.scanned_at.is_some() {
                self.wait().await?;
            }
            if self.scanned_at.is_none_or(|at| at.elapsed() >= SCAN_INTERVAL) {
                self.scanned_at = Some(Instant::now());
                self.scan().await;
            }
        }
    }

    /// Waits for a change on this node or the next scan. Returns None when the stream must end.
    async fn wait(&mut self) -> Option<()> {
        let remaining = self.scanned_at.map_or(Duration::ZERO, |at| SCAN_INTERVAL.saturating_sub(at.elapsed()));
        tokio::select! {
            () = &mut self.stop => None,
            () = tokio::time::sleep(remaining) => Some(()),
            changed = self.changes.recv() => {
                let now = self.state.store.clock().now();
                match changed {
                    Ok(job) => self.waiting.push_back((job, now)),
                    // The receiver lagged; the next scan finds what it missed.
                    Err(_) => self.scanned_at = None,
                }
                while self.waiting.len() < STREAM_WINDOW && let Ok(job) = self.changes.try_recv() {
                    self.waiting.push_back((job, now));
                }
                Some(())
            }
        }
    }

    /// Scans the newest matching jobs, to find changes made by other nodes and missed notifications.
    async fn scan(&mut self) {
        let page = self.state.store.list_jobs(self.principal.tenant, self.filter.clone(), None, STREAM_WINDOW).await;
        let Ok(page) = page else { return };
        if let Some(resume_after) = self.resume_after.take() {
            let earlier = page.jobs.iter().filter(|job| job.updated_at < resume_after);
            self.seen.extend(earlier.map(|job| (job.id, job.version)));
        }
        let changed = page.jobs.iter().filter(|job| self.seen.get(&job.id) != Some(&job.version));
        let mut changed: Vec<(JobId, Time)> = changed.map(|job| (job.id, job.updated_at)).collect();
        changed.sort_unstable_by_key(|(job, at)| (*at, *job));
        self.waiting.extend(changed);
        if self.seen.len() > 10 * STREAM_WINDOW {
            let newest: std::collections::HashSet<JobId> = page.jobs.iter().map(|job| job.id).collect();
            self.seen.retain(|job, _| newest.contains(job));
        }
    }

    async fn signal(&mut self, job: JobId, changed_at: Time) -> Option<Event> {
        let Ok(SignalRead::Found(source)) = self.state.store.signal_source(self.principal.tenant, job).await else {
            return None;
        };
        let version = source.job.version;
        if self.seen.insert(job, version) == Some(version) || !self.matches(&source) {
            return None;
        }
        let changed_at = source.job.updated_at.min(changed_at);
        let rendered = render(&self.state.store, &self.principal, *source).await.ok()?;
        Some(event(&rendered.view, changed_at.micros()).1)
    }

    fn matches(&self, source: &SignalSource) -> bool {
        let job = &source.job;
        let matches_filter =
            |expected: &Option<String>, actual: Option<&str>| expected.is_none() || expected.as_deref() == actual;
        self.principal.sees(job)
            && matches_filter(&self.filter.queue, Some(job.lane.queue.as_str()))
            && matches_filter(&self.filter.kind, Some(job.lane.kind.as_str()))
            && matches_filter(&self.filter.subject, job.subject.as_deref())
            && matches_filter(&self.filter.run, job.run.as_deref())
            && self.filter.state.is_none_or(|expected| expected == job.state)
    }
}
