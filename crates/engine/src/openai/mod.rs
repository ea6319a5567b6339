//! What the OpenAI-compatible face rests on (R8): which pool has a model, the kinds of its jobs, and the lines of batches.

pub mod lines;

use std::collections::BTreeMap;

use domain::limits::PAGE_ITEMS;
use domain::{JobError, Name, TenantId, Time};
use serde_json::value::RawValue;
use store::{Store, StoreError};

/// The endpoints that jobs may be for, and the kind of job that each makes.
pub const ENDPOINTS: [(&str, &str); 3] = [
    ("/v1/chat/completions", "openai.chat.completions"),
    ("/v1/completions", "openai.completions"),
    ("/v1/embeddings", "openai.embeddings"),
];

/// The path on a runtime that jobs of this kind are posted to, if the kind is one of that API's.
pub(crate) fn path_of(kind: &str) -> Option<&'static str> {
    ENDPOINTS.iter().find(|(_, known)| *known == kind).map(|(path, _)| *path)
}

/// Where a model is to be had.
#[derive(Clone, Debug)]
pub struct Model {
    pub pool: Name,
    pub queue: Name,
    pub created_at: Time,
}

pub type Models = BTreeMap<String, Model>;

/// The models of a tenant: the affinities of its pools. One that several pools have is the first pool's.
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

/// What a model said when it refused, with its status: the error of a job that a pool posted.
pub fn refusal(error: &JobError) -> Option<(u16, Box<RawValue>)> {
    let (status, body) = error.message.strip_prefix(crate::pool::ANSWERED)?.split_once(": ")?;
    let body = serde_json::from_str::<Box<RawValue>>(body).ok().filter(|body| body.get().starts_with('{'))?;
    Some((status.parse().ok()?, body))
}
