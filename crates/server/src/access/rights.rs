//! The table of routes and the rights they require.
//!
//! Building the router panics if a route is missing from the table, or if an entry has no route. The middleware in
//! `auth`, the security section of the OpenAPI document and `docs/reference/rights.md` all use this table.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;
use std::sync::LazyLock;

use axum::http::Method;
use domain::Right::{
    Enqueue, ManageDeadLetters, ManageRuntimes, ManageTokens, ManageTriggers, Operate, Read, ReadArtifacts, ReadJobs,
    ReadLogs, ReadOwnJobs, ReadPayloads, ReadResults, Work,
};
use domain::{Right, Role};
use utoipa::openapi::path::PathItem;
use utoipa::openapi::{OpenApi, extensions::ExtensionsBuilder, security::SecurityRequirement};

pub(crate) const BEARER: &str = "token";

/// What a route requires of its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Nothing: the route reveals nothing, or checks a secret of its own.
    Nothing,
    /// Any valid token.
    Token,
    /// A token with at least one of these rights. The handler then hides what the caller may not see.
    Any(&'static [Right]),
}

/// How a route treats a token that is restricted to queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Allowed: the handler limits the response to those queues.
    Queues,
    /// Refused: the route covers the whole tenant.
    Tenant,
}

pub(crate) struct Route {
    method: &'static str,
    path: &'static str,
    pub(crate) need: Need,
    pub(crate) reach: Reach,
}

const fn public(method: &'static str, path: &'static str) -> Route {
    Route { method, path, need: Need::Nothing, reach: Reach::Queues }
}

const fn any_token(method: &'static str, path: &'static str) -> Route {
    Route { method, path, need: Need::Token, reach: Reach::Queues }
}

/// A route for tokens restricted to queues too: the handler limits it to their queues.
const fn queues(method: &'static str, path: &'static str, rights: &'static [Right]) -> Route {
    Route { method, path, need: Need::Any(rights), reach: Reach::Queues }
}

/// A route for the whole tenant: tokens restricted to queues are refused.
const fn tenant(method: &'static str, path: &'static str, rights: &'static [Right]) -> Route {
    Route { method, path, need: Need::Any(rights), reach: Reach::Tenant }
}

/// Rights to see that a job exists. Its contents are hidden according to the caller's rights.
const SEE_JOBS: &[Right] = &[ReadJobs, ReadOwnJobs];
/// A worker reads a result that its claimed job uses.
const SEE_JOBS_OR_WORK: &[Right] = &[ReadJobs, ReadOwnJobs, Work];

#[rustfmt::skip]
const ROUTES: &[Route] = &[
    public("GET", "/healthz"),
    public("GET", "/readyz"),
    public("GET", "/sign-in"),
    public("POST", "/sign-in"),
    any_token("POST", "/sign-out"),
    any_token("GET", "/openapi.json"),
    // Styles and scripts contain no user data.
    public("GET", "/static/{name}"),
    // So does the documentation.
    public("GET", "/docs"),
    public("GET", "/docs/search"),
    public("GET", "/docs/{*path}"),
    tenant("GET", "/", &[Read]),
    queues("GET", "/jobs", SEE_JOBS),
    queues("GET", "/jobs/{id}", SEE_JOBS),
    queues("GET", "/queues", &[Read]),
    queues("GET", "/queues/{name}", &[Read]),
    tenant("GET", "/kinds/{name}", &[Read]),
    tenant("GET", "/pools", &[Read]),
    tenant("GET", "/workers", &[Read]),
    tenant("GET", "/workers/{id}", &[Read]),
    tenant("GET", "/runs", &[Read]),
    tenant("GET", "/runs/{id}", &[Read]),
    tenant("GET", "/subjects", &[Read]),
    tenant("GET", "/subjects/{id}", &[Read]),
    tenant("GET", "/failures", &[ReadLogs]),
    tenant("GET", "/dead-letters", &[ReadPayloads]),
    tenant("GET", "/triggers", &[Read]),
    tenant("GET", "/triggers/{id}", &[Read]),
    tenant("GET", "/deliveries", &[Read]),
    tenant("GET", "/deliveries/{id}", &[Read]),
    tenant("GET", "/runtimes", &[Read]),
    tenant("GET", "/runtimes/{name}", &[Read]),
    tenant("GET", "/signals", &[Read]),
    tenant("GET", "/history", &[Read]),
    tenant("GET", "/tokens", &[ManageTokens]),
    tenant("GET", "/system", &[Read]),
    tenant("GET", "/metrics", &[Read]),

    queues("GET", "/api/v1/jobs", SEE_JOBS),
    queues("POST", "/api/v1/jobs", &[Enqueue]),
    queues("POST", "/api/v1/jobs/batch", &[Enqueue]),
    queues("POST", "/api/v1/jobs/cancel", &[Operate]),
    queues("POST", "/api/v1/jobs/estimate", &[Enqueue]),
    queues("GET", "/api/v1/jobs/{id}", SEE_JOBS_OR_WORK),
    queues("POST", "/api/v1/jobs/{id}/cancel", &[Operate]),
    queues("POST", "/api/v1/jobs/{id}/retry", &[Operate]),
    queues("POST", "/api/v1/jobs/{id}/fork", &[Operate]),
    queues("POST", "/api/v1/jobs/{id}/events/{name}", &[Enqueue, Operate]),
    // The handler checks the right that the approval names.
    any_token("POST", "/api/v1/jobs/{id}/approvals/{key}"),
    // A worker reads the journals of the jobs that it may claim.
    queues("GET", "/api/v1/jobs/{id}/journal", SEE_JOBS_OR_WORK),
    queues("GET", "/api/v1/jobs/{id}/history", SEE_JOBS),
    queues("GET", "/api/v1/jobs/{id}/why", SEE_JOBS),
    queues("GET", "/api/v1/jobs/{id}/artifacts", SEE_JOBS),
    queues("GET", "/api/v1/jobs/{id}/artifacts/{name}", &[ReadArtifacts, ReadLogs, ReadOwnJobs, Work]),
    queues("PUT", "/api/v1/jobs/{id}/artifacts/{name}", &[Work]),
    queues("GET", "/api/v1/jobs/{id}/signal", SEE_JOBS),
    queues("PUT", "/api/v1/jobs/{id}/signal", &[Work]),
    queues("GET", "/api/v1/jobs/{id}/stream", SEE_JOBS),
    queues("GET", "/api/v1/signals", SEE_JOBS),
    queues("GET", "/api/v1/stream", SEE_JOBS),

    // The nodes of a run belong to any queue, so its routes are for the whole tenant. A new run has only nodes of the caller.
    queues("POST", "/api/v1/runs", &[Enqueue]),
    tenant("GET", "/api/v1/runs", &[Read]),
    tenant("GET", "/api/v1/runs/{id}", &[Read]),
    tenant("POST", "/api/v1/runs/{id}/nodes", &[Enqueue]),
    tenant("GET", "/api/v1/runs/{id}/signal", &[Read]),
    tenant("GET", "/api/v1/runs/{id}/stream", &[Read]),
    tenant("POST", "/api/v1/runs/{id}/cancel", &[Operate]),
    tenant("POST", "/api/v1/runs/{id}/retry", &[Operate]),

    queues("POST", "/api/v1/calls", &[Enqueue]),
    tenant("GET", "/api/v1/abandoned", &[ReadResults]),
    tenant("GET", "/api/v1/deliveries", &[Read]),
    tenant("GET", "/api/v1/deliveries/{id}", &[Read]),
    tenant("POST", "/api/v1/deliveries/{id}/redeliver", &[Operate]),

    tenant("GET", "/api/v1/failures", &[ReadLogs]),
    tenant("GET", "/api/v1/failures/{id}", &[ReadLogs]),
    tenant("POST", "/api/v1/failures/{id}/replay", &[Operate]),
    tenant("GET", "/api/v1/signatures", &[Read]),
    tenant("POST", "/api/v1/signatures", &[Operate]),
    tenant("POST", "/api/v1/signatures/match", &[Read]),
    tenant("GET", "/api/v1/signatures/{id}", &[Read]),
    tenant("PUT", "/api/v1/signatures/{id}", &[Operate]),
    tenant("DELETE", "/api/v1/signatures/{id}", &[Operate]),
    tenant("POST", "/api/v1/signatures/{id}/merge", &[Operate]),
    tenant("GET", "/api/v1/ttfs/events", &[Read]),
    queues("POST", "/api/v1/ttfs/events", &[Read, Enqueue, Work]),
    tenant("GET", "/api/v1/ttfs/summary", &[Read]),
    tenant("GET", "/api/v1/ttfs/slo", &[Read]),

    queues("GET", "/api/v1/queues", &[Read]),
    queues("GET", "/api/v1/queues/{name}", &[Read]),
    queues("PUT", "/api/v1/queues/{name}", &[Operate]),
    queues("DELETE", "/api/v1/queues/{name}", &[Operate]),
    queues("POST", "/api/v1/queues/{name}/pause", &[Operate]),
    queues("POST", "/api/v1/queues/{name}/prune", &[Operate]),
    queues("POST", "/api/v1/queues/{name}/resume", &[Operate]),

    tenant("GET", "/api/v1/workers", &[Read]),
    queues("POST", "/api/v1/workers", &[Work]),
    queues("DELETE", "/api/v1/workers/{id}", &[Work, Operate]),
    queues("POST", "/api/v1/workers/{id}/heartbeat", &[Work]),
    queues("POST", "/api/v1/workers/{id}/claim", &[Work]),
    queues("POST", "/api/v1/workers/{id}/settle", &[Work]),
    queues("POST", "/api/v1/workers/{id}/journal", &[Work]),
    queues("POST", "/api/v1/workers/{id}/drain", &[Operate]),

    tenant("GET", "/api/v1/subjects", &[Read]),
    tenant("GET", "/api/v1/subjects/{id}", &[Read]),
    tenant("PUT", "/api/v1/subjects/{id}", &[Operate]),
    tenant("DELETE", "/api/v1/subjects/{id}", &[Operate]),
    tenant("GET", "/api/v1/subjects/{id}/history", &[Read]),
    tenant("PUT", "/api/v1/subjects/{id}/backoffs/{process}", &[Operate]),
    tenant("DELETE", "/api/v1/subjects/{id}/backoffs/{process}", &[Operate]),
    // The handler checks the subject's own credential.
    public("PUT", "/api/v1/subjects/{id}/facts"),
    tenant("POST", "/api/v1/subjects/{id}/credential", &[Operate]),
    tenant("DELETE", "/api/v1/subjects/{id}/credential", &[Operate]),
    tenant("GET", "/api/v1/processes", &[Read]),
    tenant("GET", "/api/v1/processes/{name}", &[Read]),
    tenant("PUT", "/api/v1/processes/{name}", &[Operate]),
    tenant("DELETE", "/api/v1/processes/{name}", &[Operate]),
    tenant("GET", "/api/v1/processes/{name}/eligible", &[Read]),

    tenant("POST", "/api/v1/events", &[Enqueue]),
    tenant("POST", "/api/v1/topics/{topic}", &[Enqueue]),
    // The id is unguessable, or the body is signed.
    public("POST", "/api/v1/hooks/{id}"),
    tenant("GET", "/api/v1/kv/{collection}", &[ReadPayloads]),
    tenant("GET", "/api/v1/kv/{collection}/{key}", &[ReadPayloads]),
    tenant("PUT", "/api/v1/kv/{collection}/{key}", &[Enqueue]),
    tenant("DELETE", "/api/v1/kv/{collection}/{key}", &[Enqueue]),
    tenant("GET", "/api/v1/triggers", &[Read]),
    tenant("POST", "/api/v1/triggers", &[ManageTriggers]),
    tenant("GET", "/api/v1/triggers/{id}", &[Read]),
    tenant("PUT", "/api/v1/triggers/{id}", &[ManageTriggers]),
    tenant("DELETE", "/api/v1/triggers/{id}", &[ManageTriggers]),
    tenant("POST", "/api/v1/triggers/{id}/fire", &[ManageTriggers]),
    tenant("GET", "/api/v1/triggers/{id}/runs", &[ReadLogs]),
    tenant("GET", "/api/v1/dead-letters", &[ReadPayloads]),
    tenant("GET", "/api/v1/dead-letters/count", &[Read]),
    tenant("GET", "/api/v1/dead-letters/{id}", &[ReadPayloads]),
    tenant("POST", "/api/v1/dead-letters/{id}/replay", &[ManageDeadLetters]),
    tenant("POST", "/api/v1/dead-letters/replay", &[ManageDeadLetters]),
    tenant("POST", "/api/v1/dead-letters/{id}/resolve", &[ManageDeadLetters]),

    tenant("GET", "/api/v1/runtimes", &[Read]),
    tenant("GET", "/api/v1/runtimes/{name}", &[Read]),
    tenant("PUT", "/api/v1/runtimes/{name}", &[ManageRuntimes]),
    tenant("DELETE", "/api/v1/runtimes/{name}", &[ManageRuntimes]),
    tenant("POST", "/api/v1/runtimes/{name}/start", &[ManageRuntimes]),
    tenant("POST", "/api/v1/runtimes/{name}/stop", &[ManageRuntimes]),
    tenant("POST", "/api/v1/runtimes/{name}/restart", &[ManageRuntimes]),
    tenant("POST", "/api/v1/runtimes/{name}/patch", &[ManageRuntimes]),
    tenant("DELETE", "/api/v1/runtimes/{name}/container", &[ManageRuntimes]),
    tenant("POST", "/api/v1/runtimes/{name}/move", &[ManageRuntimes]),
    tenant("GET", "/api/v1/runtimes/{name}/operations", &[Read]),
    tenant("GET", "/api/v1/runtimes/{name}/health", &[Read]),
    tenant("GET", "/api/v1/runtimes/{name}/logs", &[ReadLogs]),
    tenant("GET", "/api/v1/nodes", &[Read]),

    tenant("GET", "/api/v1/pools", &[Read]),
    tenant("GET", "/api/v1/pools/{name}", &[Read]),
    tenant("PUT", "/api/v1/pools/{name}", &[ManageRuntimes]),
    tenant("DELETE", "/api/v1/pools/{name}", &[ManageRuntimes]),

    tenant("GET", "/api/v1/tokens", &[ManageTokens]),
    tenant("POST", "/api/v1/tokens", &[ManageTokens]),
    tenant("DELETE", "/api/v1/tokens/{id}", &[ManageTokens]),
    tenant("GET", "/api/v1/tenants", &[ManageTokens]),
    tenant("GET", "/api/v1/history", &[Read]),
    tenant("GET", "/api/v1/tasks", &[Read]),

    // The OpenAI-compatible API.
    queues("GET", "/openai/v1/models", &[Read, Enqueue]),
    queues("GET", "/openai/v1/models/{model}", &[Read, Enqueue]),
    queues("POST", "/openai/v1/chat/completions", &[Enqueue]),
    queues("POST", "/openai/v1/completions", &[Enqueue]),
    queues("POST", "/openai/v1/embeddings", &[Enqueue]),
    tenant("GET", "/openai/v1/files", &[Enqueue, ReadResults]),
    tenant("POST", "/openai/v1/files", &[Enqueue]),
    tenant("GET", "/openai/v1/files/{file}", &[Enqueue, ReadResults]),
    tenant("DELETE", "/openai/v1/files/{file}", &[Enqueue]),
    tenant("GET", "/openai/v1/files/{file}/content", &[Enqueue, ReadResults]),
    tenant("GET", "/openai/v1/batches", &[Enqueue, ReadResults]),
    tenant("POST", "/openai/v1/batches", &[Enqueue]),
    tenant("GET", "/openai/v1/batches/{batch}", &[Enqueue, ReadResults]),
    tenant("POST", "/openai/v1/batches/{batch}/cancel", &[Enqueue]),
];

static BY_PATH: LazyLock<HashMap<&'static str, Vec<&'static Route>>> = LazyLock::new(|| {
    let mut by_path: HashMap<_, Vec<_>> = HashMap::new();
    ROUTES.iter().for_each(|route| by_path.entry(route.path).or_default().push(route));
    by_path
});

/// Result of looking up a request in the table.
pub(crate) enum RouteMatch {
    Route(&'static Route),
    /// The path exists with other methods; the router answers 405.
    MethodNotAllowed(&'static str),
    /// The router has a path that the table lacks. `declare` prevents this; access is refused.
    Unlisted,
}

/// Looks up a path (the router's pattern) and a method.
pub(crate) fn lookup(path: &str, method: &Method) -> RouteMatch {
    let Some((path, routes)) = BY_PATH.get_key_value(path) else { return RouteMatch::Unlisted };
    let method = if *method == Method::HEAD { "GET" } else { method.as_str() };
    routes
        .iter()
        .find(|route| route.method == method)
        .map_or(RouteMatch::MethodNotAllowed(path), |route| RouteMatch::Route(route))
}

impl RouteMatch {
    /// Returns the router's pattern of the path.
    pub(crate) fn path(&self) -> Option<&'static str> {
        match self {
            Self::Route(route) => Some(route.path),
            Self::MethodNotAllowed(path) => Some(path),
            Self::Unlisted => None,
        }
    }
}

/// Adds the security requirements of every route to the document. Panics if the routes and the table do not match.
pub(crate) fn declare(document: &mut OpenApi) {
    let mut missing: BTreeSet<(&str, &str)> = ROUTES.iter().map(|route| (route.path, route.method)).collect();
    for (path, item) in &mut document.paths.paths {
        let PathItem { get, put, post, delete, patch, head, options, trace, .. } = item;
        let operations = [
            ("GET", get),
            ("PUT", put),
            ("POST", post),
            ("DELETE", delete),
            ("PATCH", patch),
            ("HEAD", head),
            ("OPTIONS", options),
            ("TRACE", trace),
        ];
        for (method, operation) in operations {
            let Some(operation) = operation else { continue };
            let route = ROUTES.iter().find(|route| route.path == path && route.method == method);
            let route = route.unwrap_or_else(|| panic!("{method} {path} has no entry in server/access/rights.rs"));
            missing.remove(&(route.path, route.method));
            if route.need == Need::Nothing {
                continue;
            }
            operation.security = Some(vec![SecurityRequirement::new(BEARER, Vec::<String>::new())]);
            if let Need::Any(rights) = route.need {
                let rights: Vec<&str> = rights.iter().map(|right| right.as_str()).collect();
                operation.extensions = Some(ExtensionsBuilder::new().add("x-rights", rights).build());
            }
        }
    }
    assert!(missing.is_empty(), "server/access/rights.rs lists routes that do not exist: {missing:?}");
}

/// Renders the table and the roles as Markdown, the content of `docs/reference/rights.md`.
pub fn documentation() -> String {
    let mut text = String::from(
        "# Rights\n\n\
         Generated from the tables that the server enforces; a test compares the two. A token has a role and can be granted\n\
         additional rights; an admin has every right. Objects of another tenant answer 404, like unknown ids.\n\n\
         ## Rights by role\n\n| right |",
    );
    Role::ALL.iter().for_each(|role| write!(text, " {role} |").expect("writing to a string cannot fail"));
    text.push_str(" grantable |\n|---|---|---|---|---|---|---|\n");
    for right in Right::ALL {
        let _ = write!(text, "| `{right}` |");
        for role in Role::ALL {
            text.push_str(if role.rights().has(right) { " yes |" } else { " |" });
        }
        text.push_str(if Right::GRANTABLE.contains(&right) { " yes |\n" } else { " |\n" });
    }
    text.push_str(
        "\n## Rights by route\n\nA route requires any one of its rights. For a token restricted to queues, the last column says \
         whether the route\nis limited to those queues or refused.\n\n| route | requires | token restricted to queues |\n|---|---|---|\n",
    );
    for route in ROUTES {
        let need = match route.need {
            Need::Nothing => "nothing".to_owned(),
            Need::Token => "any token".to_owned(),
            Need::Any(rights) => {
                let rights: Vec<String> = rights.iter().map(|right| format!("`{right}`")).collect();
                rights.join(" or ")
            }
        };
        let narrowed = match (route.need, route.reach) {
            (Need::Nothing | Need::Token, _) => "",
            (_, Reach::Queues) => "limited",
            (_, Reach::Tenant) => "refused",
        };
        let _ = writeln!(text, "| `{} {}` | {need} | {narrowed} |", route.method, route.path);
    }
    text.push_str("\n## Contents of a job\n\nWithout the right to a member of a job, its value is `null` and its name is listed in `redacted`.\n\n");
    for (what, right) in [
        ("`payload`, and searching payloads by `text`", ReadPayloads),
        ("`result` and `last_known_outcome`", ReadResults),
        ("artifacts except the one named `log`", ReadArtifacts),
        ("the artifact `log`, `error.message` and `diagnostics`", ReadLogs),
    ] {
        let _ = writeln!(text, "- {what}: `{right}`, or `{ReadOwnJobs}` for jobs that the token created");
    }
    let _ = writeln!(
        text,
        "\nA worker with the right `{Work}` names a claim that it holds in the header `X-Windlass-Claim: WORKER/JOB`. It then \
         reads the artifacts of the claimed job, and the result, the error and the artifacts of the jobs that the claimed job \
         needs, has started as children or is a fork of. It reads no artifact `log`."
    );
    let _ = writeln!(text, "\nWithout `{ReadLogs}`, the `last_error` of a trigger contains only its code.");
    let _ = writeln!(
        text,
        "\nWith `{ReadResults}`, a token sees all files and batches under `/openai/v1`, otherwise only its own. The content of \
         another principal's file requires `{ReadPayloads}`, unless a batch wrote it. Deleting such a file or canceling \
         another principal's batch requires `{Operate}`."
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement X7.
    #[test]
    fn a_route_missing_from_the_rights_table_fails_at_startup() {
        let mut document = crate::openapi::routes_without_rights().into_openapi();
        declare(&mut document);
        let jobs = document.paths.paths["/api/v1/jobs"].clone();
        document.paths.paths.insert("/api/v1/without-a-right".into(), jobs);
        let built = std::panic::catch_unwind(|| {
            let mut document = document;
            declare(&mut document);
        });
        assert!(built.is_err());
    }

    /// Requirement X7.
    #[test]
    fn the_rights_document_matches_the_rights_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/rights.md");
        let written = std::fs::read_to_string(path).unwrap_or_default();
        let expected = documentation();
        assert!(written == expected, "docs/reference/rights.md is out of date; run `scripts/docs --generate`");
    }

    /// Requirement X7.
    #[test]
    fn only_health_sign_in_static_files_and_routes_with_their_own_secret_need_no_token() {
        let open: Vec<&str> =
            ROUTES.iter().filter(|route| route.need == Need::Nothing).map(|route| route.path).collect();
        let expected = [
            "/healthz",
            "/readyz",
            "/sign-in",
            "/sign-in",
            "/static/{name}",
            "/docs",
            "/docs/search",
            "/docs/{*path}",
            "/api/v1/subjects/{id}/facts",
            "/api/v1/hooks/{id}",
        ];
        assert_eq!(open, expected);
    }
}
