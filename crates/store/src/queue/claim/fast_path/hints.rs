//! What this node learned from the last claim of each worker. PostgreSQL only.
//!
//! The queues allow the next claim to send its query of lane heads with the begin of the transaction, before it has read the
//! worker. The lane allows it to be a single statement. Both are guesses: the statements check them against the rows.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use domain::{Name, WorkerId};

use crate::queue::claim::capacity::is_limited;
use crate::queue::claim::lane_heads::WaitingLane;
use crate::queue::claim_gate::ClaimFilter;
use crate::queue::lanes::Lane;
use crate::queue::workers::Worker;

/// Maximum number of workers with hints. Beyond that, all hints are dropped.
const MAX_WORKERS: usize = 4_096;

#[derive(Clone, Default)]
pub(crate) struct FastPathHints {
    by_worker: Arc<Mutex<HashMap<WorkerId, FastPathHint>>>,
}

#[derive(Clone)]
pub(crate) struct FastPathHint {
    pub(crate) queues: Arc<[Name]>,
    /// The lane of the last claim, if a single statement can claim from it.
    pub(crate) lane: Option<Arc<FastPathLane>>,
}

/// A lane whose jobs a single statement can claim, with everything that the statement checks.
pub(crate) struct FastPathLane {
    pub(in crate::queue::claim) id: i64,
    pub(in crate::queue::claim) lane: Lane,
    pub(in crate::queue::claim) claim_filter: ClaimFilter,
    pub(in crate::queue::claim) timeout_s: Option<i64>,
    /// The settings of its queue, as they are stored.
    pub(in crate::queue::claim) settings: Option<String>,
}

/// What a claim changes about the hint of its worker.
pub(crate) enum HintUpdate {
    /// No job waited: the lane stays as it is.
    Keep,
    Lane(FastPathLane),
    /// The single statement cannot make such a claim.
    Remove,
}

impl FastPathLane {
    /// The hint after a claim that found these lanes, including lanes that its worker does not serve: the watermark of a queue is
    /// valid only if all of its lanes were queried.
    pub(in crate::queue::claim) fn learn(heads: &[WaitingLane], worker: &Worker) -> HintUpdate {
        match heads {
            [] => HintUpdate::Keep,
            // The jobs of a slot may have to load an affinity first.
            [only] if only.is_plain() && only.is_served_by(worker) && worker.node.is_none() => HintUpdate::Lane(Self {
                id: only.head.lane,
                lane: only.lane.clone(),
                claim_filter: worker.claim_filter(),
                timeout_s: only.settings.timeout_s_for(&only.lane.kind),
                settings: only.stored.clone(),
            }),
            _ => HintUpdate::Remove,
        }
    }
}

impl WaitingLane {
    /// True if its jobs need no holds, no capacity, no affinity and no webhook.
    fn is_plain(&self) -> bool {
        let is_free = !self.lane.guarded && self.lane.affinity.is_none();
        is_free && !is_limited(&self.settings) && self.settings.webhook.is_none()
    }
}

impl FastPathHints {
    pub(crate) fn get(&self, worker: WorkerId) -> Option<FastPathHint> {
        self.by_worker().get(&worker).cloned()
    }

    pub(crate) fn insert(&self, worker: WorkerId, claim_filter: &ClaimFilter, update: HintUpdate) {
        let mut by_worker = self.by_worker();
        if by_worker.len() >= MAX_WORKERS && !by_worker.contains_key(&worker) {
            by_worker.clear();
        }
        let queues = || claim_filter.queues.clone().into();
        let hint = by_worker.entry(worker).or_insert_with(|| FastPathHint { queues: queues(), lane: None });
        if *hint.queues != *claim_filter.queues {
            *hint = FastPathHint { queues: queues(), lane: None };
        }
        match update {
            HintUpdate::Keep => {}
            HintUpdate::Lane(lane) => hint.lane = Some(Arc::new(lane)),
            HintUpdate::Remove => hint.lane = None,
        }
    }

    fn by_worker(&self) -> MutexGuard<'_, HashMap<WorkerId, FastPathHint>> {
        self.by_worker.lock().expect("lock poisoned")
    }
}
