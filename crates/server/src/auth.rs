//! Who asks. Every request passes the gate; every handler takes a `Principal`, and the tenant comes from it alone.
//!
//! While no token was ever made, whoever reaches the server (on loopback only, see `host`) is the local operator. After
//! the first, nothing is answered without one, but what the table in `rights` gives to everyone.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use axum::extract::{FromRequestParts, MatchedPath, Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use domain::limits::TOKEN_TRUST_MS;
use domain::{Access, JobId, Name, Right, TenantId, TokenId, WorkerId};
use store::jobs::get::StoredJob;
use store::jobs::list::JobFilter;
use store::tokens::Token;
use store::tokens::authenticate::{Caller, Known};

use crate::error::ApiError;
use crate::extract::{drain, header};
use crate::host;
use crate::rights::{self, Found, Need, Reach};
use crate::state::AppState;

const TRUST: Duration = Duration::from_millis(TOKEN_TRUST_MS);
static LOCAL: LazyLock<(Arc<str>, Access)> = LazyLock::new(|| ("local".into(), Access::full()));

#[derive(Clone, Debug)]
pub(crate) struct Principal {
    pub(crate) tenant: TenantId,
    /// What it is called in histories. Tokens of one name are one principal.
    pub(crate) name: Arc<str>,
    /// None for the local operator.
    known: Option<Known>,
}

impl Principal {
    fn local() -> Self {
        Self { tenant: TenantId::DEFAULT, name: LOCAL.0.clone(), known: None }
    }

    fn of(known: Known) -> Self {
        Self { tenant: known.token.tenant, name: known.token.name.clone(), known: Some(known) }
    }

    fn access(&self) -> &Access {
        self.known.as_ref().map_or(&LOCAL.1, |known| &known.token.access)
    }

    pub(crate) fn token(&self) -> Option<&Token> {
        self.known.as_ref().map(|known| &*known.token)
    }

    pub(crate) fn token_id(&self) -> Option<TokenId> {
        self.token().map(|token| token.id)
    }

    pub(crate) fn has(&self, right: Right) -> bool {
        self.access().has(right)
    }

    /// The queues it is narrowed to; none when it reaches all.
    pub(crate) fn queues(&self) -> Option<&[Name]> {
        self.access().queues.as_deref()
    }

    pub(crate) fn reaches(&self, queue: &Name) -> bool {
        self.access().reaches(queue)
    }

    /// Whether the job is one that it may know of.
    pub(crate) fn sees(&self, job: &StoredJob) -> bool {
        self.reaches(&job.lane.queue) && (self.has(Right::ReadJobs) || self.made(job))
    }

    /// Whether what the right is about may be shown to it.
    pub(crate) fn reads(&self, right: Right, job: &StoredJob) -> bool {
        self.has(right) || self.made(job)
    }

    /// A retry or a replay is of what somebody else put in.
    fn made(&self, job: &StoredJob) -> bool {
        let of_its_own = job.parent.is_none() && job.triggered_by.is_none();
        self.has(Right::ReadOwnJobs) && *job.principal == *self.name && of_its_own
    }

    /// Whether there is no job of its tenant that it may not know of.
    pub(crate) fn sees_all(&self) -> bool {
        self.has(Right::ReadJobs) && self.queues().is_none()
    }

    /// The jobs a listing may show to it.
    pub(crate) fn narrow(&self, filter: JobFilter) -> JobFilter {
        JobFilter {
            principal: (!self.has(Right::ReadJobs)).then(|| self.name.to_string()),
            queues: self.queues().map(|queues| queues.iter().map(Name::to_string).collect()),
            names_only: self.has(Right::ReadJobs) && !self.has(Right::ReadPayloads),
            ..filter
        }
    }

    /// Refuses a queue beyond those it is narrowed to.
    pub(crate) fn check_queue(&self, queue: &Name) -> Result<(), ApiError> {
        if self.reaches(queue) {
            return Ok(());
        }
        Err(ApiError::forbidden(format_args!("the token does not reach the queue {queue}")))
    }

    fn check(&self, need: Need, reach: Reach) -> Result<(), ApiError> {
        let Need::Any(rights) = need else { return Ok(()) };
        if !rights.iter().any(|right| self.has(*right)) {
            let rights: Vec<&str> = rights.iter().map(|right| right.as_str()).collect();
            return Err(ApiError::forbidden(format_args!("the token lacks the right {}", rights.join(" or "))));
        }
        if reach == Reach::Tenant && self.queues().is_some() {
            return Err(ApiError::forbidden("the token is narrowed to queues, and this is about the whole tenant"));
        }
        Ok(())
    }
}

/// What every request passes first.
pub(crate) async fn gate(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let path = request.extensions().get::<MatchedPath>();
    let found = path.map(|path| rights::of(path.as_str(), request.method()));
    let need = match found {
        Some(Found::Route(route)) if route.need == Need::Nothing => return next.run(request).await,
        Some(Found::Route(route)) => Some((route.need, route.reach)),
        // No route, or not by this method: the router says so to whoever has a token.
        None | Some(Found::OtherMethod) => Some((Need::Token, Reach::Queues)),
        Some(Found::Unheard) => None,
    };
    let (mut parts, body) = request.into_parts();
    let admitted = match admit(&state, &parts).await {
        Ok(principal) => match need {
            Some((need, reach)) => principal.check(need, reach).map(|()| principal),
            None => Err(ApiError::forbidden("nobody has a right to this route")),
        },
        refused => refused,
    };
    let principal = match admitted {
        Ok(principal) => principal,
        Err(refusal) => {
            drain(&parts.headers, body).await;
            return refusal.into_response();
        }
    };
    parts.extensions.insert(principal.clone());
    let began = Instant::now();
    let response = next.run(Request::from_parts(parts, body)).await;
    // A long-poll may have outlived its token: then what it found is not for the caller any more.
    if began.elapsed() > TRUST
        && let Err(refusal) = still_good(&state, &principal).await
    {
        return refusal.into_response();
    }
    response
}

async fn admit(state: &AppState, parts: &Parts) -> Result<Principal, ApiError> {
    match state.store.authenticate(bearer(&parts.headers)?).await? {
        Caller::Anyone => {
            host::check(state.options.host_check, &parts.method, &parts.uri, &parts.headers)?;
            Ok(Principal::local())
        }
        Caller::Token(known) => Ok(Principal::of(known)),
        Caller::Nobody => Err(ApiError::token_required()),
        Caller::Refused => Err(ApiError::invalid_token()),
    }
}

/// The token of `Authorization: Bearer …`. Something else in its place is none.
fn bearer(headers: &HeaderMap) -> Result<Option<&str>, ApiError> {
    let Some(value) = header(headers, &AUTHORIZATION)? else { return Ok(None) };
    let (scheme, token) = value.split_once(' ').unwrap_or((value, ""));
    Ok(Some(if scheme.eq_ignore_ascii_case("bearer") { token.trim() } else { "" }))
}

async fn still_good(state: &AppState, principal: &Principal) -> Result<(), ApiError> {
    match state.store.is_still_good(principal.known.as_ref()).await? {
        true => Ok(()),
        false => Err(ApiError::invalid_token()),
    }
}

impl AppState {
    /// The job, if the caller may know of it. One that it may not answers like one that nobody has.
    pub(crate) async fn visible_job(&self, principal: &Principal, id: JobId) -> Result<StoredJob, ApiError> {
        let job = self.store.job(principal.tenant, id).await?;
        job.filter(|job| principal.sees(job)).ok_or_else(|| ApiError::not_found("job"))
    }

    /// The same where the job itself is not wanted: nothing is read for those who may know of every job.
    pub(crate) async fn check_visible(&self, principal: &Principal, id: JobId) -> Result<(), ApiError> {
        if principal.sees_all() { Ok(()) } else { self.visible_job(principal, id).await.map(drop) }
    }

    /// Refuses a job in a queue beyond those the caller is narrowed to.
    pub(crate) async fn check_reached(&self, principal: &Principal, id: JobId) -> Result<(), ApiError> {
        if principal.queues().is_none() {
            return Ok(());
        }
        let job = self.store.job(principal.tenant, id).await?;
        let reached = job.is_some_and(|job| principal.reaches(&job.lane.queue));
        if reached { Ok(()) } else { Err(ApiError::not_found("job")) }
    }

    /// Refuses a worker that serves a queue beyond those the caller is narrowed to.
    pub(crate) async fn check_worker(&self, principal: &Principal, id: WorkerId) -> Result<(), ApiError> {
        if principal.queues().is_none() {
            return Ok(());
        }
        let worker = self.store.worker(principal.tenant, id).await?;
        let reached = worker.is_some_and(|worker| worker.queues.iter().all(|queue| principal.reaches(queue)));
        if reached { Ok(()) } else { Err(ApiError::not_found("worker")) }
    }

    /// Completes when a long-poll should give up: the server stops, or the caller's token ends.
    pub(crate) async fn ended(&self, principal: &Principal) {
        let revoked = async {
            loop {
                tokio::time::sleep(TRUST).await;
                // A database that is away ends no wait; the answer is judged once more before it goes out.
                if matches!(self.store.is_still_good(principal.known.as_ref()).await, Ok(false)) {
                    break;
                }
            }
        };
        tokio::select! {
            () = self.stopping.cancelled() => {}
            () = revoked => {}
        }
    }
}

impl FromRequestParts<AppState> for Principal {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &AppState) -> Result<Self, ApiError> {
        // Only the gate puts one there: a router without it lets nobody in.
        parts.extensions.get::<Self>().cloned().ok_or_else(ApiError::token_required)
    }
}

/// Whether a request changes something.
pub(crate) fn changes(method: &Method) -> bool {
    !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}
