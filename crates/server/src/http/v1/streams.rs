//! Signals as server-sent events: of one job, and of all that match a filter (S3).

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
use store::jobs::list::JobFilter;
use store::signals::read::{SignalRead, SignalSource};
use tokio::sync::broadcast;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::SignalView;

use crate::auth::Principal;
use crate::error::ApiError;
use crate::extract::{Params, PathJob, header};
use crate::signal::tell;
use crate::state::AppState;
use crate::streams::Watching;
use crate::validate::query::{label, name, state as job_state};

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const KEEP_ALIVE: Duration = Duration::from_secs(15);
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// What changed so long before the last event that a reader saw is told once more when it comes back: a change is stamped
/// a moment before it is committed and seen.
const OVERLAP_S: i64 = 10;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(job)).routes(routes!(all))
}

/// Follows one job: an event `signal` for each change, its id the signal's version, until the job has ended.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/stream", tag = "streams",
    params(("id" = Uuid, Path), ("Last-Event-ID" = Option<i64>, Header, description = "go on after this version")),
    responses((status = 200, content_type = "text/event-stream", body = SignalView),
              (status = 204, description = "the job has ended and its last signal was seen")))]
async fn job(
    State(state): State<AppState>,
    principal: Principal,
    PathJob(id): PathJob,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let seen = last_event_id(&headers)?;
    let source = match state.store.signal_source(principal.tenant, id).await? {
        SignalRead::Found(source) if principal.sees(&source.job) => *source,
        SignalRead::Forgotten if principal.sees_all() => return Ok(StatusCode::NO_CONTENT.into_response()),
        _ => return Err(ApiError::not_found("job")),
    };
    if source.job.state.is_terminal() && seen == Some(source.job.version) {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let too_many = || ApiError::too_many_streams();
    let watching = state.streams.watch(id, source.job.version).ok_or_else(too_many)?;
    let (over, sent) = (state.until_ended(&principal), seen.map(|version| (version, None)));
    let follow = Follow { state, principal, over, source, watching, sent, ended: false };
    Ok(sse(unfold(follow, Follow::next)))
}

fn sse(events: impl Stream<Item = Result<Event, Infallible>> + Send + 'static) -> Response {
    let headers = [("cache-control", "no-store"), ("x-accel-buffering", "no")];
    (headers, Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE))).into_response()
}

/// The text of a signal, and the event that carries it.
fn event(view: &SignalView, id: i64) -> (String, Event) {
    let body = serde_json::to_string(view).expect("plain data has a JSON form");
    (body.clone(), Event::default().event("signal").id(id.to_string()).data(body))
}

fn last_event_id(headers: &HeaderMap) -> Result<Option<i64>, ApiError> {
    Ok(header(headers, &LAST_EVENT_ID)?.and_then(|text| text.parse().ok()))
}

/// One reader of one job.
struct Follow {
    state: AppState,
    principal: Principal,
    /// The server stops, or the reader may not read any more.
    over: BoxFuture<'static, ()>,
    source: SignalSource,
    watching: Watching,
    /// The version that the reader has, and its text when we sent it.
    sent: Option<(i64, Option<String>)>,
    ended: bool,
}

impl Follow {
    /// The next event; it is made only when the reader takes it.
    async fn next(mut self) -> Option<(Result<Event, Infallible>, Self)> {
        if self.ended {
            return None;
        }
        loop {
            let current = self.source.job.version;
            let told = tell(&self.state.store, &self.principal, self.source.clone()).await.ok();
            if let Some(told) = told {
                let (body, event) = event(&told.view, told.view.version);
                let known = match &self.sent {
                    None => false,
                    Some((version, None)) => *version == current,
                    Some((version, Some(text))) => *version == current && *text == body,
                };
                if !known {
                    self.sent = Some((current, Some(body)));
                    self.ended = self.source.job.state.is_terminal();
                    return Some((Ok(event), self));
                }
                if let Some((_, text @ None)) = &mut self.sent {
                    *text = Some(body);
                }
            }
            let every = self.state.streams.overlay_every();
            tokio::select! {
                changed = self.watching.version.changed() => changed.ok()?,
                () = tokio::time::sleep(every) => {}
                () = &mut self.over => return None,
            }
            let version = *self.watching.version.borrow_and_update();
            if version != self.source.job.version {
                // Away for a moment, or pruned: then the look finds nothing and the stream ends with the job.
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
    queue: Option<String>,
    kind: Option<String>,
    subject: Option<String>,
    /// The job's state.
    state: Option<String>,
    run: Option<String>,
}

/// Follows all jobs that match: first their present signals, then each change.
///
/// A stream tells states, not every step between: a reader that is slow, or was away, gets the newest. An event's id is the
/// time of the change: who comes back with the last one is told only what has changed since, or shortly before.
#[utoipa::path(get, path = "/api/v1/stream", tag = "streams",
    params(StreamQuery, ("Last-Event-ID" = Option<i64>, Header, description = "go on after this event")),
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
    let survey = Survey {
        filter,
        changes: state.store.hints().changes(),
        over: state.until_ended(&principal),
        state,
        principal,
        seen: HashMap::new(),
        known: last_event_id(&headers)?.map(|last| Time::from_micros(last).plus_s(-OVERLAP_S)),
        waiting: VecDeque::new(),
        looked_at: None,
    };
    Ok(sse(unfold(survey, Survey::next)))
}

/// One reader of many jobs.
struct Survey {
    state: AppState,
    principal: Principal,
    over: BoxFuture<'static, ()>,
    filter: JobFilter,
    changes: broadcast::Receiver<JobId>,
    /// The versions that were sent.
    seen: HashMap<JobId, i64>,
    /// What changed before this the reader knows from an earlier stream.
    known: Option<Time>,
    /// Jobs whose signal is to be sent, in the order in which they changed, and when that was known to be. An event is
    /// stamped no later than that, though its job may have gone on: what stands behind it would count as told.
    waiting: VecDeque<(JobId, Time)>,
    looked_at: Option<Instant>,
}

impl Survey {
    async fn next(mut self) -> Option<(Result<Event, Infallible>, Self)> {
        loop {
            while let Some((job, changed_at)) = self.waiting.pop_front() {
                if let Some(event) = self.signal(job, changed_at).await {
                    return Some((Ok(event), self));
                }
            }
            if self.looked_at.is_some() {
                self.wait().await?;
            }
            if self.looked_at.is_none_or(|at| at.elapsed() >= LOOK_EVERY) {
                self.looked_at = Some(Instant::now());
                self.look().await;
            }
        }
    }

    /// Until something changed on this node, or the time for a look has come. Nothing when the server stops.
    async fn wait(&mut self) -> Option<()> {
        let left = self.looked_at.map_or(Duration::ZERO, |at| LOOK_EVERY.saturating_sub(at.elapsed()));
        tokio::select! {
            () = &mut self.over => None,
            () = tokio::time::sleep(left) => Some(()),
            changed = self.changes.recv() => {
                let now = self.state.store.clock().now();
                match changed {
                    Ok(job) => self.waiting.push_back((job, now)),
                    // It fell behind, and the look finds what it missed.
                    Err(_) => self.looked_at = None,
                }
                while self.waiting.len() < STREAM_WINDOW && let Ok(job) = self.changes.try_recv() {
                    self.waiting.push_back((job, now));
                }
                Some(())
            }
        }
    }

    /// The newest jobs that match, for what other nodes changed and for what was missed.
    async fn look(&mut self) {
        let page = self.state.store.list_jobs(self.principal.tenant, self.filter.clone(), None, STREAM_WINDOW).await;
        let Ok(page) = page else { return };
        if let Some(known) = self.known.take() {
            let earlier = page.jobs.iter().filter(|job| job.updated_at < known);
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
        let told = tell(&self.state.store, &self.principal, *source).await.ok()?;
        Some(event(&told.view, changed_at.micros()).1)
    }

    fn matches(&self, source: &SignalSource) -> bool {
        let job = &source.job;
        let same = |wanted: &Option<String>, got: Option<&str>| wanted.is_none() || wanted.as_deref() == got;
        self.principal.sees(job)
            && same(&self.filter.queue, Some(job.lane.queue.as_str()))
            && same(&self.filter.kind, Some(job.lane.kind.as_str()))
            && same(&self.filter.subject, job.subject.as_deref())
            && same(&self.filter.run, job.run.as_deref())
            && self.filter.state.is_none_or(|wanted| wanted == job.state)
    }
}
