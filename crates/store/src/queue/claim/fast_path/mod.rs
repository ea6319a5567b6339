//! Accelerators of a claim, behind one entry point: `FastPath::claim` makes the complete claim or declines.
//!
//! The plain claim is always correct without them. `StoreOptions::plain_claims` turns all of them off: a `FastPath` that never
//! learns always declines.

pub(crate) mod claimed_row_cache;
pub(crate) mod hints;
pub(crate) mod single_statement;
pub(crate) mod watermarks;

use std::sync::Arc;

use domain::{JobState, Name, TenantId, WorkerId};

use super::lane_heads::LaneQuery;
use super::{ClaimEffects, ClaimRequest, Claimed};
use crate::error::StoreError;
use crate::store::Store;
use crate::triggers::job_events::version_without_trigger;
use claimed_row_cache::ClaimedRowCache;
use hints::{FastPathHints, HintUpdate};
use single_statement::SingleStatementClaim;
use watermarks::Watermarks;

/// The accelerators of one node; cheap to clone.
#[derive(Clone)]
pub(crate) struct FastPath {
    is_enabled: bool,
    hints: FastPathHints,
    watermarks: Watermarks,
    claimed_rows: ClaimedRowCache,
}

impl FastPath {
    pub(crate) fn new(is_enabled: bool) -> Self {
        let (hints, watermarks, claimed_rows) = Default::default();
        Self { is_enabled, hints, watermarks, claimed_rows }
    }

    /// Makes the claim in a single statement, or returns `None`.
    pub(super) async fn claim(
        &self,
        store: &Store,
        request: &ClaimRequest,
    ) -> Result<Option<ClaimEffects>, StoreError> {
        let ClaimRequest { of, tenant, worker, .. } = *request;
        // A statement that is a transaction by itself relies on settings of its session, which a pooler does not keep. A worker
        // of the built-in tenant may serve other tenants.
        if store.is_behind_a_pooler() || of != tenant || tenant == TenantId::SYSTEM {
            return Ok(None);
        }
        let Some(lane) = self.hints.get(worker).and_then(|hint| hint.lane) else { return Ok(None) };
        let version = version_without_trigger(store.triggers_cache(), &lane.lane, JobState::Working);
        let Some(trigger_version) = version else { return Ok(None) };
        let query = LaneQuery::above_watermarks(&self.watermarks, tenant, &lane.claim_filter.queues);
        let (request, shift_ms) = (request.clone(), store.clock().shift_ms());
        store.write(SingleStatementClaim { request, lane, query, trigger_version, shift_ms }).await
    }

    /// The queues that the worker serves, if this node has seen a claim of it.
    pub(super) fn expected_queues(&self, worker: WorkerId) -> Option<Arc<[Name]>> {
        self.hints.get(worker).map(|hint| hint.queues)
    }

    /// Updates the accelerators after the commit of a claim.
    pub(super) fn learn(&self, of: TenantId, worker: WorkerId, done: &mut ClaimEffects, is_postgres: bool) {
        if !self.is_enabled {
            return;
        }
        self.claimed_rows.insert(std::mem::take(&mut done.claimed_rows));
        for (queue, watermark) in done.watermarks.drain(..) {
            self.watermarks.insert(of, queue, watermark);
        }
        if let (true, Claimed::Jobs { claim_filter, .. }) = (is_postgres, &done.claimed) {
            let update = std::mem::replace(&mut done.hint_update, HintUpdate::Keep);
            self.hints.insert(worker, claim_filter, update);
        }
    }

    pub(crate) fn watermarks(&self) -> &Watermarks {
        &self.watermarks
    }

    pub(crate) fn claimed_rows(&self) -> &ClaimedRowCache {
        &self.claimed_rows
    }
}
