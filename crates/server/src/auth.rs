//! Who asks. Every request passes the gate; every handler takes a `Principal`, and the tenant comes from it alone.
//!
//! While no token was ever made, whoever reaches the server (on loopback only, see `host`) is the local operator. After
//! the first, nothing is answered without one, but what the table in `rights` gives to everyone.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use axum::extract::{FromRequestParts, MatchedPath, Request};
use axum::http::header::{AUTHORIZATION, LOCATION, SET_COOKIE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use domain::limits::{SESSION_ROTATE_S, TOKEN_TRUST_MS};
use domain::{Access, JobId, Name, Right, Standing, TenantId, TokenId, WorkerId};
use futures_util::future::BoxFuture;
use pages::frame::root_of;
use pages::segment;
use store::StoreError;
use store::jobs::get::StoredJob;
use store::jobs::list::JobFilter;
use store::tokens::authenticate::{Caller, Known};
use store::tokens::{Serves, Token};
use tokio::task::JoinSet;

use crate::dashboard::{asks_for_a_page, onward};
use crate::error::ApiError;
use crate::extract::{drain, header};
use crate::host;
use crate::patience::patient;
use crate::rights::{self, Found, Need, Reach};
use crate::session::{SessionSecret, check_browser, check_origin};
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

    pub(crate) fn of(known: Known) -> Self {
        Self { tenant: known.token.tenant, name: known.token.name.clone(), known: Some(known) }
    }

    fn access(&self) -> &Access {
        self.known.as_ref().map_or(&LOCAL.1, |known| &known.token.access)
    }

    pub(crate) fn token(&self) -> Option<&Token> {
        self.known.as_ref().map(|known| &*known.token)
    }

    pub(crate) fn has_session(&self) -> bool {
        self.known.as_ref().is_some_and(|known| known.session_since.is_some())
    }

    pub(crate) fn token_id(&self) -> Option<TokenId> {
        self.token().map(|token| token.id)
    }

    /// What it may do, as a later moment will ask.
    pub(crate) fn standing(&self) -> Standing {
        Standing::of(vec![self.access().clone()])
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

    /// Whether it is told of the whole program: what others have is no business of a guest's.
    pub(crate) fn is_of_the_house(&self) -> bool {
        matches!(self.tenant, TenantId::SYSTEM | TenantId::DEFAULT)
    }

    /// Whose work it may take beside its own tenant's.
    pub(crate) fn serves(&self) -> Option<&Serves> {
        self.token().and_then(|token| token.serves.as_ref())
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

    /// Whether the gate would let it in there, by the router's own pattern of the path.
    pub(crate) fn may(&self, method: &Method, path: &str) -> bool {
        match rights::of(path, method) {
            Found::Route(route) => self.check(route.need, route.reach).is_ok(),
            Found::OtherMethod(_) | Found::Unheard => false,
        }
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

/// What every request passes first. `found` is what the table says of its route, where it has one.
pub(crate) async fn gate(state: AppState, found: Option<Found>, request: Request, next: Next) -> Response {
    let need = match found {
        Some(Found::Route(route)) if route.need == Need::Nothing => {
            let public = state.options.public_origin.as_deref();
            return match check_origin(request.method(), request.headers(), public) {
                Ok(()) => next.run(request.map(patient)).await,
                Err(refusal) => refusal.into_response(),
            };
        }
        Some(Found::Route(route)) => Some((route.need, route.reach)),
        // No route, or not by this method: the router says so to whoever has a token.
        None | Some(Found::OtherMethod(_)) => Some((Need::Token, Reach::Queues)),
        Some(Found::Unheard) => None,
    };
    let (mut parts, body) = request.into_parts();
    let body = patient(body);
    let is_page = asks_for_a_page(&parts.method, &parts.uri, &parts.headers);
    let admitted = match admit(&state, &parts).await {
        Ok(principal) => {
            let allowed = match need {
                Some((need, reach)) => principal.check(need, reach),
                None => Err(ApiError::forbidden("nobody has a right to this route")),
            };
            allowed.map_err(|refusal| (refusal, Some(onward(&principal)))).map(|()| principal)
        }
        Err(refusal) => Err((refusal, None)),
    };
    let principal = match admitted {
        Ok(principal) => principal,
        Err((refusal, onward)) => {
            drain(&parts.headers, body).await;
            // Who asks for a page would rather be shown the door than a problem document.
            if is_page && refusal.status() == StatusCode::UNAUTHORIZED {
                return to_sign_in(&parts);
            }
            let mut response = refusal.into_response();
            if let Some(onward) = onward {
                response.extensions_mut().insert(onward);
            }
            return response;
        }
    };
    let session = principal.has_session().then(|| state.options.cookies.read(&parts.headers)).flatten();
    let outlives_the_database = is_told_without_the_database(&parts);
    let changing = changes(&parts.method);
    parts.extensions.insert(principal.clone());
    let began = Instant::now();
    let mut response = next.run(Request::from_parts(parts, body)).await;
    // A long-poll may have outlived its token: then what it found is not for the caller any more.
    let parting = response.extensions_mut().remove::<Parting>().is_some();
    if began.elapsed() > TRUST
        && !parting
        && let Err(refusal) = still_good(&state, &principal).await
        && !(outlives_the_database && refusal.status() == StatusCode::SERVICE_UNAVAILABLE)
    {
        // Who was told no, or that nothing was done, is told so still; what was done is not told as undone.
        let away = refusal.status() == StatusCode::SERVICE_UNAVAILABLE;
        return match (changing && away, response.status().is_success()) {
            (true, true) => refusal.after_a_change().into_response(),
            (true, false) => response,
            (false, _) => refusal.into_response(),
        };
    }
    if is_page && response.status().is_client_error() {
        response.extensions_mut().insert(onward(&principal));
    }
    if let Some(session) = session.filter(|_| is_page)
        && let Some(cookie) = rotated(&state, &principal, &session).await
    {
        response.headers_mut().append(SET_COOKIE, cookie);
    }
    response
}

/// Goes with an answer that is for the caller although it ended the caller's own token or session, or made the first
/// token, without which nobody is let in any more.
#[derive(Clone, Copy)]
pub(crate) struct Parting;

fn to_sign_in(parts: &Parts) -> Response {
    let page = parts.uri.path_and_query().map_or("/", |page| page.as_str());
    let next: Vec<String> = page.split('/').map(segment).collect();
    let place = HeaderValue::from_str(&format!("{}sign-in?next={}", root_of(parts.uri.path()), next.join("/")));
    let place = place.unwrap_or(HeaderValue::from_static("./sign-in"));
    (StatusCode::SEE_OTHER, [(LOCATION, place)]).into_response()
}

/// A fresh secret for a session whose secret has got old.
async fn rotated(state: &AppState, principal: &Principal, session: &SessionSecret) -> Option<HeaderValue> {
    let since = principal.known.as_ref().and_then(|known| known.session_since)?;
    if since.plus_s(SESSION_ROTATE_S) > state.store.clock().now() {
        return None;
    }
    let fresh = SessionSecret::new();
    // What goes wrong here is tried again with the next page.
    match state.store.rotate_session(session.hash(), fresh.hash()).await {
        Ok(true) => Some(state.options.cookies.cookie(&fresh)),
        _ => None,
    }
}

async fn admit(state: &AppState, parts: &Parts) -> Result<Principal, ApiError> {
    let bearer = bearer(&parts.headers)?;
    let session = if bearer.is_none() { state.options.cookies.read(&parts.headers) } else { None };
    let caller = match &session {
        Some(session) => state.store.authenticate_session(session.hash()).await,
        None => state.store.authenticate(bearer).await,
    };
    let caller = match caller {
        Err(away @ StoreError::Unavailable { .. }) if is_told_without_the_database(parts) => {
            state.store.remembered_caller(bearer).ok_or(away)?
        }
        caller => caller?,
    };
    match caller {
        Caller::Anyone => {
            host::check(state.options.host_check, &parts.method, &parts.uri, &parts.headers)?;
            Ok(Principal::local())
        }
        Caller::Token(known) => {
            let public = state.options.public_origin.as_deref();
            match known.session_since {
                Some(_) => check_browser(&parts.method, &parts.headers, public)?,
                None => check_origin(&parts.method, &parts.headers, public)?,
            }
            Ok(Principal::of(known))
        }
        Caller::Nobody => Err(ApiError::token_required()),
        Caller::Refused => Err(ApiError::invalid_token()),
    }
}

/// Figures of this process are told while the database is away, to whoever was known when it was last there: that is when
/// they are wanted most.
fn is_told_without_the_database(parts: &Parts) -> bool {
    parts.extensions.get::<MatchedPath>().is_some_and(|path| path.as_str() == "/metrics")
}

/// The token of `Authorization: Bearer …`. Something else in its place is none.
pub(crate) fn bearer(headers: &HeaderMap) -> Result<Option<&str>, ApiError> {
    let Some(value) = header(headers, &AUTHORIZATION)? else { return Ok(None) };
    let (scheme, token) = value.split_once(' ').unwrap_or((value, ""));
    Ok(Some(if scheme.eq_ignore_ascii_case("bearer") { token.trim() } else { "" }))
}

async fn still_good(state: &AppState, principal: &Principal) -> Result<(), ApiError> {
    match state.store.is_still_good(principal.known.as_ref()).await? {
        true => Ok(()),
        // It came while there were no tokens, without one.
        false if principal.known.is_none() => Err(ApiError::token_required()),
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
        let job = self.store.job(self.tenant_of(principal, id).await?, id).await?;
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

    /// The tenant in which a worker's word on a job counts: the job's own, where the worker serves that.
    pub(crate) async fn tenant_of(&self, principal: &Principal, job: JobId) -> Result<TenantId, ApiError> {
        let Some(serves) = principal.serves() else { return Ok(principal.tenant) };
        Ok(self.store.served_tenant_of(job, serves).await?.unwrap_or(principal.tenant))
    }

    /// `ended` for a stream, which waits again and again: made anew for each wait it would never come to its end. A task of its
    /// own, which ends with the stream: nobody asks a stream whose reader has stopped reading how far its wait is, and
    /// everybody else's look at the tokens would stand behind it.
    pub(crate) fn until_ended(&self, principal: &Principal) -> BoxFuture<'static, ()> {
        let (state, principal) = (self.clone(), principal.clone());
        let mut waiting = JoinSet::new();
        waiting.spawn(async move { state.ended(&principal).await });
        Box::pin(async move { drop(waiting.join_next().await) })
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
