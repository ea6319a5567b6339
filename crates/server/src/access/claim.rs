//! Reading with a claim: what a worker without rights to read jobs may read because it holds the claim of a job.

use axum::http::{HeaderMap, HeaderName};
use domain::{JobId, Right, TenantId, WorkerId};
use store::workflows::claim_access::HeldClaim;
use uuid::Uuid;

use crate::access::auth::Principal;
use crate::error::ApiError;
use crate::extract::header;
use crate::state::AppState;

const CLAIM: HeaderName = HeaderName::from_static("x-windlass-claim");

impl AppState {
    /// The tenant of the job, if the request names a claim of a worker that the caller reaches and that claim lets its
    /// holder read the job.
    pub(crate) async fn readable_by_claim(
        &self,
        principal: &Principal,
        headers: &HeaderMap,
        job: JobId,
    ) -> Result<Option<TenantId>, ApiError> {
        let Some(claim) = held_claim(headers)?.filter(|_| principal.has(Right::Work)) else { return Ok(None) };
        self.check_worker(principal, claim.worker).await?;
        let tenant = self.tenant_of(principal, job).await?;
        Ok(self.store.may_read_by_claim(tenant, claim, job).await?.then_some(tenant))
    }
}

/// Reads `X-Windlass-Claim: WORKER/JOB`.
fn held_claim(headers: &HeaderMap) -> Result<Option<HeldClaim>, ApiError> {
    let claim = |text: &str| {
        let (worker, job) = text.split_once('/')?;
        let id = |text: &str| Uuid::try_parse(text).ok();
        Some(HeldClaim { worker: WorkerId::new(id(worker)?), job: JobId::new(id(job)?) })
    };
    let Some(text) = header(headers, &CLAIM)? else { return Ok(None) };
    let refuse = || ApiError::invalid_header("X-Windlass-Claim", "must be WORKER/JOB with the ids of both");
    claim(text).map(Some).ok_or_else(refuse)
}
