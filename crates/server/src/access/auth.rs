//! Authentication and authorization. `serve` passes every request through `authorize`; every handler takes a
//! `Principal`, and the tenant comes from it alone.
//!
//! Until the first token exists, every caller is the local operator (on loopback only, see `host`). After that, every
//! request needs a token, except on the routes that the table in `rights` declares public.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use axum::extract::{FromRequestParts, MatchedPath, Request};
use axum::http::header::{AUTHORIZATION, LOCATION, SET_COOKIE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use domain::limits::{SESSION_ROTATE_S, TOKEN_CACHE_TTL_MS};
use domain::{Access, JobId, Name, PrincipalRights, Right, TenantId, TokenId, WorkerId};
use futures_util::future::BoxFuture;
use pages::frame::root_of;
use pages::segment;
use store::StoreError;
use store::access::tokens::authenticate::{AuthenticatedToken, Authentication};
use store::access::tokens::{Serves, Token};
use store::queue::enqueue::NewJob;
use store::queue::get::StoredJob;
use store::queue::list::JobFilter;
use tokio::task::JoinSet;

use crate::access::cross_site::OwnOrigin;
use crate::access::host;
use crate::access::rights;
use crate::access::rights::{Need, Reach, RouteMatch};
use crate::access::session::SessionSecret;
use crate::body_timeout::with_timeout;
use crate::dashboard::{error_link, wants_page};
use crate::error::ApiError;
use crate::extract::{drain, header};
use crate::state::AppState;

const TOKEN_RECHECK: Duration = Duration::from_millis(TOKEN_CACHE_TTL_MS);
static LOCAL: LazyLock<(Arc<str>, Access)> = LazyLock::new(|| ("local".into(), Access::full()));

#[derive(Clone, Debug)]
pub(crate) struct Principal {
    pub(crate) tenant: TenantId,
    /// Name of the token, as histories show it. Tokens with the same name are one principal.
    pub(crate) name: Arc<str>,
    /// None for the local operator.
    authenticated: Option<AuthenticatedToken>,
}

impl Principal {
    fn local() -> Self {
        Self { tenant: TenantId::DEFAULT, name: LOCAL.0.clone(), authenticated: None }
    }

    pub(crate) fn of(authenticated: AuthenticatedToken) -> Self {
        Self {
            tenant: authenticated.token.tenant,
            name: authenticated.token.name.clone(),
            authenticated: Some(authenticated),
        }
    }

    fn access(&self) -> &Access {
        self.authenticated.as_ref().map_or(&LOCAL.1, |authenticated| &authenticated.token.access)
    }

    pub(crate) fn token(&self) -> Option<&Token> {
        self.authenticated.as_ref().map(|authenticated| &*authenticated.token)
    }

    pub(crate) fn has_session(&self) -> bool {
        self.authenticated.as_ref().is_some_and(|authenticated| authenticated.session_since.is_some())
    }

    pub(crate) fn token_id(&self) -> Option<TokenId> {
        self.token().map(|token| token.id)
    }

    /// The rights that later checks on the caller's behalf use (for example, of a trigger it created).
    pub(crate) fn current_rights(&self) -> PrincipalRights {
        PrincipalRights::of(vec![self.access().clone()])
    }

    pub(crate) fn has(&self, right: Right) -> bool {
        self.access().has(right)
    }

    /// The queues the token is restricted to. None if it reaches every queue.
    pub(crate) fn queues(&self) -> Option<&[Name]> {
        self.access().queues.as_deref()
    }

    pub(crate) fn reaches(&self, queue: &Name) -> bool {
        self.access().reaches(queue)
    }

    /// True if the caller may see figures of the whole installation: those of other tenants are hidden from a tenant of
    /// its own.
    pub(crate) fn sees_installation(&self) -> bool {
        matches!(self.tenant, TenantId::SYSTEM | TenantId::DEFAULT)
    }

    /// The tenants that the token serves besides its own.
    pub(crate) fn serves(&self) -> Option<&Serves> {
        self.token().and_then(|token| token.serves.as_ref())
    }

    /// True if the caller may know that the job exists.
    pub(crate) fn sees(&self, job: &StoredJob) -> bool {
        self.reaches(&job.lane.queue) && (self.has(Right::ReadJobs) || self.created(job))
    }

    /// True if the caller may see the part of the job that `right` protects.
    pub(crate) fn reads(&self, right: Right, job: &StoredJob) -> bool {
        self.has(right) || self.created(job)
    }

    /// True if the caller created the job itself. A retry or a replay repeats another principal's input, so it does not
    /// count.
    fn created(&self, job: &StoredJob) -> bool {
        let is_original = job.parent.is_none() && job.triggered_by.is_none();
        self.has(Right::ReadOwnJobs) && *job.principal == *self.name && is_original
    }

    /// True if the caller may see every job of its tenant.
    pub(crate) fn sees_all(&self) -> bool {
        self.has(Right::ReadJobs) && self.queues().is_none()
    }

    /// Restricts a listing to the jobs that the caller may see.
    pub(crate) fn narrow(&self, filter: JobFilter) -> JobFilter {
        // `text` is searched in payloads and in error messages.
        let reads_contents =
            self.has(Right::ReadPayloads) && (self.has(Right::ReadLogs) || self.has(Right::ReadResults));
        JobFilter {
            principal: (!self.has(Right::ReadJobs)).then(|| self.name.to_string()),
            queues: self.queues().map(|queues| queues.iter().map(Name::to_string).collect()),
            names_only: self.has(Right::ReadJobs) && !reads_contents,
            ..filter
        }
    }

    /// Returns 403 for a queue that the token does not reach.
    pub(crate) fn check_queue(&self, queue: &Name) -> Result<(), ApiError> {
        if self.reaches(queue) {
            return Ok(());
        }
        Err(ApiError::forbidden(format_args!("the token is not allowed to use the queue {queue}")))
    }

    /// Returns 403 for a job that the caller may not create: in a queue that the token does not reach, or with a webhook
    /// that would reveal more than the caller may read of the job.
    pub(crate) fn check_new_job(&self, job: &NewJob) -> Result<(), ApiError> {
        self.check_queue(&job.queue)?;
        let has_webhook = job.extras.as_deref().is_some_and(|extras| extras.webhook.is_some());
        if has_webhook && !self.has(Right::ReadOwnJobs) { self.check_webhook(&job.queue) } else { Ok(()) }
    }

    /// Returns 403 if the caller may not read what a webhook of the queue receives.
    pub(crate) fn check_webhook(&self, queue: &Name) -> Result<(), ApiError> {
        let Some(right) = self.current_rights().missing_right_to_receive(queue) else { return Ok(()) };
        let detail = format_args!(
            "a webhook receives results and errors, and the token lacks the right {right}; omit the webhook or use a token \
             with this right"
        );
        Err(ApiError::forbidden(detail).at("webhook"))
    }

    /// True if the caller is allowed to use the route. `path` is the router's pattern.
    pub(crate) fn may(&self, method: &Method, path: &str) -> bool {
        match rights::lookup(path, method) {
            RouteMatch::Route(route) => self.check(route.need, route.reach).is_ok(),
            RouteMatch::MethodNotAllowed(_) | RouteMatch::Unlisted => false,
        }
    }

    fn check(&self, need: Need, reach: Reach) -> Result<(), ApiError> {
        let Need::Any(rights) = need else { return Ok(()) };
        if !rights.iter().any(|right| self.has(*right)) {
            let rights: Vec<&str> = rights.iter().map(|right| right.as_str()).collect();
            return Err(ApiError::forbidden(format_args!("the token lacks the right {}", rights.join(" or "))));
        }
        if reach == Reach::Tenant && self.queues().is_some() {
            return Err(ApiError::forbidden(
                "the token is restricted to queues, but this route covers the whole tenant",
            ));
        }
        Ok(())
    }
}

/// Middleware that authenticates and authorizes a request. `route_match` is the entry of its route in the rights table,
/// if the router found a route.
pub(crate) async fn authorize(
    state: AppState,
    route_match: Option<RouteMatch>,
    request: Request,
    next: Next,
) -> Response {
    let need = match route_match {
        Some(RouteMatch::Route(route)) if route.need == Need::Nothing => {
            let own = own_origin(&state);
            return match own.check(request.method(), request.uri(), request.headers()) {
                Ok(()) => next.run(request.map(with_timeout)).await,
                Err(refusal) => refusal.into_response(),
            };
        }
        Some(RouteMatch::Route(route)) => Some((route.need, route.reach)),
        // The router answers 404 or 405, but only to callers with a token.
        None | Some(RouteMatch::MethodNotAllowed(_)) => Some((Need::Token, Reach::Queues)),
        Some(RouteMatch::Unlisted) => None,
    };
    let (mut parts, body) = request.into_parts();
    let body = with_timeout(body);
    let is_page = wants_page(&parts.method, &parts.uri, &parts.headers);
    let admitted = match authenticate(&state, &parts).await {
        Ok(principal) => {
            let allowed = match need {
                Some((need, reach)) => principal.check(need, reach),
                None => Err(ApiError::forbidden("no right grants access to this route")),
            };
            allowed.map_err(|refusal| (refusal, Some(error_link(&principal)))).map(|()| principal)
        }
        Err(refusal) => Err((refusal, None)),
    };
    let principal = match admitted {
        Ok(principal) => principal,
        Err((refusal, error_link)) => {
            drain(&parts.headers, body).await;
            // A browser is redirected to the sign-in page instead of getting a problem document.
            if is_page && refusal.status() == StatusCode::UNAUTHORIZED {
                return to_sign_in(&parts);
            }
            let mut response = refusal.into_response();
            if let Some(error_link) = error_link {
                response.extensions_mut().insert(error_link);
            }
            return response;
        }
    };
    let session = principal.has_session().then(|| state.options.cookies.read(&parts.headers)).flatten();
    let is_exempt = works_without_database(&parts);
    let changes_state = changes(&parts.method);
    parts.extensions.insert(principal.clone());
    let started = Instant::now();
    let mut response = next.run(Request::from_parts(parts, body)).await;
    // The token of a long-poll may have ended meanwhile: check it again before the response leaves.
    let skip_recheck = response.extensions_mut().remove::<SkipTokenRecheck>().is_some();
    if started.elapsed() > TOKEN_RECHECK
        && !skip_recheck
        && let Err(refusal) = check_still_valid(&state, &principal).await
        && !(is_exempt && refusal.status() == StatusCode::SERVICE_UNAVAILABLE)
    {
        // A refusal, or a response that nothing was changed, stays valid without the database. A change that succeeded
        // must not be reported as undone.
        let is_unavailable = refusal.status() == StatusCode::SERVICE_UNAVAILABLE;
        return match (changes_state && is_unavailable, response.status().is_success()) {
            (true, true) => refusal.after_a_change().into_response(),
            (true, false) => response,
            (false, _) => refusal.into_response(),
        };
    }
    if is_page && response.status().is_client_error() {
        response.extensions_mut().insert(error_link(&principal));
    }
    if let Some(session) = session.filter(|_| is_page)
        && let Some(cookie) = rotated_cookie(&state, &principal, &session).await
    {
        response.headers_mut().append(SET_COOKIE, cookie);
    }
    response
}

/// Response extension: skip the recheck of the caller's token. For responses that revoke the caller's own token or
/// session, or that create the first token, after which requests without a token are refused.
#[derive(Clone, Copy)]
pub(crate) struct SkipTokenRecheck;

fn to_sign_in(parts: &Parts) -> Response {
    let page = parts.uri.path_and_query().map_or("/", |page| page.as_str());
    let next: Vec<String> = page.split('/').map(segment).collect();
    let location = HeaderValue::from_str(&format!("{}sign-in?next={}", root_of(parts.uri.path()), next.join("/")));
    let location = location.unwrap_or(HeaderValue::from_static("./sign-in"));
    (StatusCode::SEE_OTHER, [(LOCATION, location)]).into_response()
}

/// Returns a cookie with a new secret if the session's secret is due for rotation.
async fn rotated_cookie(state: &AppState, principal: &Principal, session: &SessionSecret) -> Option<HeaderValue> {
    let since = principal.authenticated.as_ref().and_then(|authenticated| authenticated.session_since)?;
    if since.plus_s(SESSION_ROTATE_S) > state.store.clock().now() {
        return None;
    }
    let fresh = SessionSecret::new();
    // If this fails, the next page request tries again.
    match state.store.rotate_session(session.hash(), fresh.hash()).await {
        Ok(true) => Some(state.options.cookies.cookie(&fresh)),
        _ => None,
    }
}

fn own_origin(state: &AppState) -> OwnOrigin<'_> {
    OwnOrigin { has_tls: state.options.tls.is_some(), public: state.options.public_origin.as_deref() }
}

async fn authenticate(state: &AppState, parts: &Parts) -> Result<Principal, ApiError> {
    let own = own_origin(state);
    own.check(&parts.method, &parts.uri, &parts.headers)?;
    let bearer = bearer(&parts.headers)?;
    let session = if bearer.is_none() { state.options.cookies.read(&parts.headers) } else { None };
    let caller = match &session {
        Some(session) => state.store.authenticate_session(session.hash()).await,
        None => state.store.authenticate(bearer).await,
    };
    let caller = match caller {
        Err(error @ StoreError::Unavailable { .. }) if works_without_database(parts) => {
            state.store.cached_authentication(bearer).ok_or(error)?
        }
        caller => caller?,
    };
    match caller {
        Authentication::Open => {
            host::check(state.options.host_check, &parts.uri, &parts.headers)?;
            Ok(Principal::local())
        }
        Authentication::Token(authenticated) => {
            if authenticated.session_since.is_some() {
                own.check_with_cookie(&parts.method, &parts.uri, &parts.headers)?;
            }
            Ok(Principal::of(authenticated))
        }
        Authentication::Missing => Err(ApiError::token_required()),
        Authentication::Refused => Err(ApiError::invalid_token()),
    }
}

/// True for routes that work while the database is unavailable: the metrics of this process, for tokens that were valid
/// when the database was last reachable. Metrics matter most during an outage.
fn works_without_database(parts: &Parts) -> bool {
    parts.extensions.get::<MatchedPath>().is_some_and(|path| path.as_str() == "/metrics")
}

/// Returns the token of `Authorization: Bearer …`. An empty string if another scheme is used.
pub(crate) fn bearer(headers: &HeaderMap) -> Result<Option<&str>, ApiError> {
    let Some(value) = header(headers, &AUTHORIZATION)? else { return Ok(None) };
    let (scheme, token) = value.split_once(' ').unwrap_or((value, ""));
    Ok(Some(if scheme.eq_ignore_ascii_case("bearer") { token.trim() } else { "" }))
}

async fn check_still_valid(state: &AppState, principal: &Principal) -> Result<(), ApiError> {
    match state.store.is_still_authenticated(principal.authenticated.as_ref()).await? {
        true => Ok(()),
        // The caller was admitted without a token before the first one was created.
        false if principal.authenticated.is_none() => Err(ApiError::token_required()),
        false => Err(ApiError::invalid_token()),
    }
}

impl AppState {
    /// Returns the job. A job that the caller may not see answers 404, like an unknown id.
    pub(crate) async fn visible_job(&self, principal: &Principal, id: JobId) -> Result<StoredJob, ApiError> {
        let job = self.store.job(principal.tenant, id).await?;
        job.filter(|job| principal.sees(job)).ok_or_else(|| ApiError::not_found("job"))
    }

    /// Like `visible_job`, for callers that do not need the job. Reads nothing if the caller may see every job.
    pub(crate) async fn check_visible(&self, principal: &Principal, id: JobId) -> Result<(), ApiError> {
        if principal.sees_all() { Ok(()) } else { self.visible_job(principal, id).await.map(drop) }
    }

    /// Returns 404 for a job in a queue that the token does not reach.
    pub(crate) async fn check_reached(&self, principal: &Principal, id: JobId) -> Result<(), ApiError> {
        if principal.queues().is_none() {
            return Ok(());
        }
        let job = self.store.job(self.tenant_of(principal, id).await?, id).await?;
        let reached = job.is_some_and(|job| principal.reaches(&job.lane.queue));
        if reached { Ok(()) } else { Err(ApiError::not_found("job")) }
    }

    /// Returns 404 for a worker that serves a queue which the token does not reach.
    pub(crate) async fn check_worker(&self, principal: &Principal, id: WorkerId) -> Result<(), ApiError> {
        if principal.queues().is_none() {
            return Ok(());
        }
        let worker = self.store.worker(principal.tenant, id).await?;
        let reached = worker.is_some_and(|worker| worker.queues.iter().all(|queue| principal.reaches(queue)));
        if reached { Ok(()) } else { Err(ApiError::not_found("worker")) }
    }

    /// Returns the tenant in which a worker's report on a job applies: the job's own if the token serves that tenant.
    pub(crate) async fn tenant_of(&self, principal: &Principal, job: JobId) -> Result<TenantId, ApiError> {
        let Some(serves) = principal.serves() else { return Ok(principal.tenant) };
        Ok(self.store.served_tenant_of(job, serves).await?.unwrap_or(principal.tenant))
    }

    /// Like `ended`, for a stream that waits repeatedly: a fresh future for each wait would restart its timer every
    /// time and never complete. It runs in its own task, which ends with the stream, because a stream is not polled
    /// after its reader stops reading, and an unpolled token check would block the checks of all other callers.
    pub(crate) fn until_ended(&self, principal: &Principal) -> BoxFuture<'static, ()> {
        let (state, principal) = (self.clone(), principal.clone());
        let mut waiting = JoinSet::new();
        waiting.spawn(async move { state.ended(&principal).await });
        Box::pin(async move { drop(waiting.join_next().await) })
    }

    /// Completes when a long-poll must end: the server shuts down, or the caller's token is no longer valid.
    pub(crate) async fn ended(&self, principal: &Principal) {
        let revoked = async {
            loop {
                tokio::time::sleep(TOKEN_RECHECK).await;
                // An unavailable database does not end the wait; the token is checked again before the response leaves.
                if matches!(self.store.is_still_authenticated(principal.authenticated.as_ref()).await, Ok(false)) {
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
        // Only `authorize` inserts a principal: a router without it refuses everybody.
        parts.extensions.get::<Self>().cloned().ok_or_else(ApiError::token_required)
    }
}

/// True if a request with this method changes state.
pub(crate) fn changes(method: &Method) -> bool {
    !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}
