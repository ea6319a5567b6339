//! Signals as server-sent events: of one job, and of all jobs that match a filter.

mod changed;

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use domain::limits::{STREAM_READ_INTERVAL_MS, STREAM_WINDOW};
use domain::{JobId, Time};
use futures_util::future::BoxFuture;
use futures_util::stream::{Stream, unfold};
use serde::Deserialize;
use store::db::notifier::JobChange;
use store::queue::list::JobFilter;
use store::signals::read::{SignalRead, SignalSource};
use store::signals::versions::JobVersion;
use tokio::sync::broadcast;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::SignalView;

use crate::access::auth::Principal;
use crate::error::ApiError;
use crate::extract::{Params, PathJob, header};
use crate::signals::streams::{FilteredPermit, SignalWatch};
use crate::signals::view::render;
use crate::state::AppState;
use crate::validate::query::{label, name, state as job_state};

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const KEEP_ALIVE: Duration = Duration::from_secs(15);
const SCAN_INTERVAL: Duration = Duration::from_millis(800);
const READ_INTERVAL: Duration = Duration::from_millis(STREAM_READ_INTERVAL_MS);
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

pub(crate) fn sse(events: impl Stream<Item = Result<Event, Infallible>> + Send + 'static) -> Response {
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
    /// `changes`: send an event `changed` without content when matching jobs have changed, at most once a second. Less
    /// often if many such streams are open.
    only: Option<String>,
}

/// Stream the signals of all matching jobs: first the current ones, then each change.
///
/// A stream carries states, not every intermediate step: a slow or reconnecting client gets the newest state. The event
/// id is the time of the change. A client that reconnects with the last id gets what changed since then or shortly
/// before. Returns 429 if the token has 200 such streams open on this node.
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
    let only_changes = match query.only.as_deref() {
        None => false,
        Some("changes") => true,
        Some(_) => return Err(ApiError::invalid_query("only", "must be `changes`")),
    };
    let permit = state.streams.open_filtered(principal.tenant, &principal.name);
    let permit = permit.ok_or_else(ApiError::too_many_streams_of_token)?;
    if only_changes {
        return Ok(changed::stream(state, principal, filter, permit));
    }
    let stream = FilteredStream {
        _permit: permit,
        filter,
        changes: state.store.notifier().changes(),
        stop: state.until_ended(&principal),
        state,
        principal,
        seen: HashMap::new(),
        resume_after: last_event_id(&headers)?.map(|last| Time::from_micros(last).plus_s(-OVERLAP_S)),
        waiting: VecDeque::new(),
        scanned_at: None,
        has_scanned: false,
        read_at: Instant::now(),
    };
    Ok(sse(unfold(stream, FilteredStream::next)))
}

/// One client that follows many jobs.
struct FilteredStream {
    state: AppState,
    principal: Principal,
    stop: BoxFuture<'static, ()>,
    _permit: FilteredPermit,
    filter: JobFilter,
    changes: broadcast::Receiver<JobChange>,
    /// The versions that were sent.
    seen: HashMap<JobId, i64>,
    /// The client received older changes on an earlier stream.
    resume_after: Option<Time>,
    /// Jobs with a signal to send, in the order of their changes, each with the time at which the change was
    /// noticed. An event carries at most that time, even if the job has changed again: a later one would make a
    /// reconnecting client skip the changes queued behind it.
    waiting: VecDeque<(JobId, Time)>,
    scanned_at: Option<Instant>,
    /// The stream has made its first scan, which is its own.
    has_scanned: bool,
    /// When the last changed jobs were read.
    read_at: Instant,
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
    ///
    /// A busy tenant changes thousands of jobs a second. Reads are therefore at least `READ_INTERVAL` apart, and each
    /// covers at most `STREAM_WINDOW` jobs; the scan finds the newest of the others.
    async fn wait(&mut self) -> Option<()> {
        let scan_in = self.scanned_at.map_or(Duration::ZERO, |at| SCAN_INTERVAL.saturating_sub(at.elapsed()));
        let scan_at = tokio::time::Instant::now() + scan_in;
        tokio::select! {
            () = &mut self.stop => return None,
            () = tokio::time::sleep(READ_INTERVAL.saturating_sub(self.read_at.elapsed())) => {}
        }
        while self.waiting.is_empty() && self.scanned_at.is_some() {
            tokio::select! {
                () = &mut self.stop => return None,
                () = tokio::time::sleep_until(scan_at) => break,
                changed = self.changes.recv() => self.changed(changed.ok()),
            }
        }
        while self.waiting.len() < STREAM_WINDOW {
            match self.changes.try_recv() {
                Ok(change) => self.changed(Some(change)),
                Err(broadcast::error::TryRecvError::Lagged(_)) => self.changed(None),
                Err(_) => break,
            }
        }
        self.read_at = Instant::now();
        Some(())
    }

    /// Notes a change, or that changes were missed: the next scan finds the newest of them.
    fn changed(&mut self, change: Option<JobChange>) {
        match change {
            Some(change) if self.may_match(&change) => {
                self.waiting.push_back((change.job, self.state.store.clock().now()));
            }
            Some(_) => {}
            None => self.scanned_at = None,
        }
    }

    /// False if the change certainly does not match the filter. The job is then not read.
    fn may_match(&self, change: &JobChange) -> bool {
        if change.tenant != self.principal.tenant {
            return false;
        }
        if change.to.is_some_and(|to| self.filter.state.is_some_and(|expected| expected != to)) {
            return false;
        }
        let Some(lane) = change.lane.and_then(|lane| self.state.store.cached_lane(lane)) else { return true };
        let is = |expected: &Option<String>, actual: &str| expected.as_deref().is_none_or(|text| text == actual);
        let reaches = |queues: &Vec<String>| queues.iter().any(|queue| queue == lane.queue.as_str());
        is(&self.filter.queue, lane.queue.as_str())
            && is(&self.filter.kind, lane.kind.as_str())
            && self.filter.queues.as_ref().is_none_or(reaches)
    }

    /// Scans the newest matching jobs, to find changes made by other nodes and missed notifications. Only the first scan of
    /// a stream is its own.
    async fn scan(&mut self) {
        let tenant = self.principal.tenant;
        let versions = match self.has_scanned {
            false => self.state.store.job_versions(tenant, self.filter.clone()).await.map(std::sync::Arc::new),
            true => self.state.store.shared_job_versions(tenant, &self.filter).await,
        };
        let Ok(versions) = versions else { return };
        self.has_scanned = true;
        if let Some(resume_after) = self.resume_after.take() {
            let earlier = versions.iter().filter(|job| job.updated_at < resume_after);
            self.seen.extend(earlier.map(|job| (job.job, job.version)));
        }
        // A shared scan may be older than what the stream has sent.
        let is_newer = |job: &&JobVersion| self.seen.get(&job.job).is_none_or(|seen| *seen < job.version);
        let mut changed: Vec<(JobId, Time)> =
            versions.iter().filter(is_newer).map(|job| (job.job, job.updated_at)).collect();
        changed.sort_unstable_by_key(|(job, at)| (*at, *job));
        self.waiting.extend(changed);
        if self.seen.len() > 10 * STREAM_WINDOW {
            let newest: std::collections::HashSet<JobId> = versions.iter().map(|job| job.job).collect();
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
