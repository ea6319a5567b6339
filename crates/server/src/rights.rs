//! Which route needs which right: the one table (X7, T12).
//!
//! The router is not built with a route that is missing here, nor with a line here that no route has. What the gate in
//! `auth` lets through, what the OpenAPI document says of security and `docs/RIGHTS.md` all come from it.

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

/// What a caller must bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Nothing: it tells nothing of anyone, or it has a secret of its own.
    Nothing,
    /// A token, whatever it may do.
    Token,
    /// A token with any of these rights. What the handler shows is then cut to what the caller may see.
    Any(&'static [Right]),
}

/// What a token that is narrowed to queues gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The handler keeps it to its queues.
    Queues,
    /// Nothing: this is about the whole tenant.
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

/// For tokens narrowed to queues too: the handler keeps them to their queues.
const fn queues(method: &'static str, path: &'static str, rights: &'static [Right]) -> Route {
    Route { method, path, need: Need::Any(rights), reach: Reach::Queues }
}

/// About the whole tenant: a token narrowed to queues is refused.
const fn tenant(method: &'static str, path: &'static str, rights: &'static [Right]) -> Route {
    Route { method, path, need: Need::Any(rights), reach: Reach::Tenant }
}

/// Seeing that a job exists; what is in it is cut to the caller's rights.
const SEE_JOBS: &[Right] = &[ReadJobs, ReadOwnJobs];

#[rustfmt::skip]
const ROUTES: &[Route] = &[
    public("GET", "/healthz"),
    public("GET", "/readyz"),
    public("GET", "/sign-in"),
    public("POST", "/sign-in"),
    any_token("POST", "/sign-out"),
    any_token("GET", "/openapi.json"),
    // Styles and scripts: they tell nothing of anyone.
    public("GET", "/static/{name}"),
    tenant("GET", "/", &[Read]),
    queues("GET", "/jobs", SEE_JOBS),
    queues("GET", "/jobs/{id}", SEE_JOBS),
    queues("GET", "/queues", &[Read]),
    tenant("GET", "/pools", &[Read]),
    tenant("GET", "/workers", &[Read]),
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
    queues("GET", "/api/v1/jobs/{id}", SEE_JOBS),
    queues("POST", "/api/v1/jobs/{id}/cancel", &[Operate]),
    queues("POST", "/api/v1/jobs/{id}/retry", &[Operate]),
    queues("GET", "/api/v1/jobs/{id}/history", SEE_JOBS),
    queues("GET", "/api/v1/jobs/{id}/why", SEE_JOBS),
    queues("GET", "/api/v1/jobs/{id}/artifacts", SEE_JOBS),
    queues("GET", "/api/v1/jobs/{id}/artifacts/{name}", &[ReadArtifacts, ReadLogs, ReadOwnJobs]),
    queues("PUT", "/api/v1/jobs/{id}/artifacts/{name}", &[Work]),
    queues("GET", "/api/v1/jobs/{id}/signal", SEE_JOBS),
    queues("PUT", "/api/v1/jobs/{id}/signal", &[Work]),
    queues("GET", "/api/v1/jobs/{id}/stream", SEE_JOBS),
    queues("GET", "/api/v1/signals", SEE_JOBS),
    queues("GET", "/api/v1/stream", SEE_JOBS),

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
    queues("POST", "/api/v1/ttfs/events", &[Read, Enqueue, Work]),
    tenant("GET", "/api/v1/ttfs/summary", &[Read]),
    tenant("GET", "/api/v1/ttfs/slo", &[Read]),

    queues("GET", "/api/v1/queues", &[Read]),
    queues("GET", "/api/v1/queues/{name}", &[Read]),
    queues("PUT", "/api/v1/queues/{name}", &[Operate]),
    queues("POST", "/api/v1/queues/{name}/pause", &[Operate]),
    queues("POST", "/api/v1/queues/{name}/resume", &[Operate]),

    tenant("GET", "/api/v1/workers", &[Read]),
    queues("POST", "/api/v1/workers", &[Work]),
    queues("DELETE", "/api/v1/workers/{id}", &[Work, Operate]),
    queues("POST", "/api/v1/workers/{id}/heartbeat", &[Work]),
    queues("POST", "/api/v1/workers/{id}/claim", &[Work]),
    queues("POST", "/api/v1/workers/{id}/settle", &[Work]),
    queues("POST", "/api/v1/workers/{id}/drain", &[Operate]),

    tenant("GET", "/api/v1/subjects", &[Read]),
    tenant("GET", "/api/v1/subjects/{id}", &[Read]),
    tenant("PUT", "/api/v1/subjects/{id}", &[Operate]),
    tenant("DELETE", "/api/v1/subjects/{id}", &[Operate]),
    tenant("GET", "/api/v1/subjects/{id}/history", &[Read]),
    tenant("PUT", "/api/v1/subjects/{id}/backoffs/{process}", &[Operate]),
    tenant("DELETE", "/api/v1/subjects/{id}/backoffs/{process}", &[Operate]),
    // The subject's own credential is asked for by the handler.
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

    // The OpenAI-compatible face.
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

/// What the table says of what the router found.
pub(crate) enum Found {
    Route(&'static Route),
    /// The path has other methods: the router says so.
    OtherMethod(&'static str),
    /// The router has a path that the table does not know. There is none, and nobody gets in by it.
    Unheard,
}

/// By the router's own pattern of the path.
pub(crate) fn of(path: &str, method: &Method) -> Found {
    let Some((path, routes)) = BY_PATH.get_key_value(path) else { return Found::Unheard };
    let method = if *method == Method::HEAD { "GET" } else { method.as_str() };
    routes.iter().find(|route| route.method == method).map_or(Found::OtherMethod(path), |route| Found::Route(route))
}

impl Found {
    /// The router's pattern of the path.
    pub(crate) fn path(&self) -> Option<&'static str> {
        match self {
            Self::Route(route) => Some(route.path),
            Self::OtherMethod(path) => Some(path),
            Self::Unheard => None,
        }
    }
}

/// Writes what each route needs into the document, and refuses one that does not match the table.
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
            let route = route.unwrap_or_else(|| panic!("{method} {path} has no line in server/rights.rs"));
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
    assert!(missing.is_empty(), "server/rights.rs names routes that do not exist: {missing:?}");
}

/// The table and the roles, as the pages of `docs/RIGHTS.md`.
pub fn documentation() -> String {
    let mut text = String::from(
        "# Who may do what\n\n\
         Made from the tables that the program itself goes by; a test compares. A token has a role and may be granted single\n\
         rights; an admin has all of them. A token of another tenant gets the answer of an id that nobody has.\n\n\
         ## What roles bring\n\n| right |",
    );
    Role::ALL.iter().for_each(|role| write!(text, " {role} |").expect("a string takes everything"));
    text.push_str(" may be granted |\n|---|---|---|---|---|---|---|\n");
    for right in Right::ALL {
        let _ = write!(text, "| `{right}` |");
        for role in Role::ALL {
            text.push_str(if role.rights().has(right) { " yes |" } else { " |" });
        }
        text.push_str(if Right::GRANTABLE.contains(&right) { " yes |\n" } else { " |\n" });
    }
    text.push_str(
        "\n## What routes need\n\nAny one of the rights. A token narrowed to queues is held to them where the last column \
         says so, and refused\nelsewhere.\n\n| route | needs | narrowed to queues |\n|---|---|---|\n",
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
            (_, Reach::Queues) => "held to them",
            (_, Reach::Tenant) => "refused",
        };
        let _ = writeln!(text, "| `{} {}` | {need} | {narrowed} |", route.method, route.path);
    }
    text.push_str("\n## What is in a job\n\nWhoever sees a job without the right to what is in it sees `null` there, and its name in `redacted`.\n\n");
    for (what, right) in [
        ("`payload`, and searching payloads by `text`", ReadPayloads),
        ("`result` and `last_known_outcome`", ReadResults),
        ("artifacts but the one called `log`", ReadArtifacts),
        ("the artifact `log`, `error.message` and `diagnostics`", ReadLogs),
    ] {
        let _ = writeln!(text, "- {what}: `{right}`, or having made the job with `{ReadOwnJobs}`");
    }
    let _ = writeln!(text, "\nOf a trigger's `last_error` whoever may not `{ReadLogs}` sees the code alone.");
    let _ = writeln!(
        text,
        "\nFiles and batches under `/openai/v1` are everybody's to see who may `{ReadResults}`. What is in another's file takes \
         `{ReadPayloads}`, unless a batch wrote it; deleting it, or calling another's batch off, takes `{Operate}`."
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x7_a_route_that_is_missing_from_the_table_builds_no_router() {
        let mut document = crate::openapi::undeclared().into_openapi();
        declare(&mut document);
        let jobs = document.paths.paths["/api/v1/jobs"].clone();
        document.paths.paths.insert("/api/v1/unheard-of".into(), jobs);
        let built = std::panic::catch_unwind(|| {
            let mut document = document;
            declare(&mut document);
        });
        assert!(built.is_err());
    }

    #[test]
    fn x7_the_document_of_rights_is_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/RIGHTS.md");
        let written = std::fs::read_to_string(path).unwrap_or_default();
        let expected = documentation();
        assert!(written == expected, "docs/RIGHTS.md should be:\n{expected}");
    }

    #[test]
    fn x7_only_health_the_door_and_what_has_a_secret_of_its_own_need_no_token() {
        let open: Vec<&str> =
            ROUTES.iter().filter(|route| route.need == Need::Nothing).map(|route| route.path).collect();
        let expected = [
            "/healthz",
            "/readyz",
            "/sign-in",
            "/sign-in",
            "/static/{name}",
            "/api/v1/subjects/{id}/facts",
            "/api/v1/hooks/{id}",
        ];
        assert_eq!(open, expected);
    }
}
