//! The engine's part of the OpenAI-compatible API: models, job kinds and batch files.

pub mod lines;

use std::collections::BTreeMap;

use domain::limits::PAGE_ITEMS;
use domain::{JobError, Name, TenantId, Time};
use serde_json::value::RawValue;
use store::{Store, StoreError};

/// The endpoints that create jobs, and the job kind of each.
pub const ENDPOINTS: [(&str, &str); 3] = [
    ("/v1/chat/completions", "openai.chat.completions"),
    ("/v1/completions", "openai.completions"),
    ("/v1/embeddings", "openai.embeddings"),
];

/// The path on a runtime for jobs of an OpenAI kind. `None` for other kinds.
pub(crate) fn path_of(kind: &str) -> Option<&'static str> {
    ENDPOINTS.iter().find(|(_, own)| *own == kind).map(|(path, _)| *path)
}

/// The pool that serves a model.
#[derive(Clone, Debug)]
pub struct Model {
    pub pool: Name,
    pub queue: Name,
    pub created_at: Time,
}

pub type Models = BTreeMap<String, Model>;

/// The models of a tenant: the affinities of its pools. If several pools have a model, the first pool serves it.
pub async fn models(store: &Store, tenant: TenantId) -> Result<Models, StoreError> {
    let mut models = Models::new();
    for pool in store.list_pools(tenant, None, PAGE_ITEMS).await? {
        for member in pool.spec.members {
            models.entry(member.affinity.to_string()).or_insert_with(|| Model {
                pool: pool.name.clone(),
                queue: pool.spec.queue.clone(),
                created_at: pool.created_at,
            });
        }
    }
    Ok(models)
}

/// Parses the status and body of a model's error response from the error of its job.
pub fn refusal(error: &JobError) -> Option<(u16, Box<RawValue>)> {
    let (status, body) = error.message.strip_prefix(crate::runtimes::pool::ANSWERED)?.split_once(": ")?;
    let body = serde_json::from_str::<Box<RawValue>>(body).ok().filter(|body| body.get().starts_with('{'))?;
    Some((status.parse().ok()?, body))
}
