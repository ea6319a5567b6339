//! Fair scheduling of scripts on one node: the tenant with the fewest running scripts goes first.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use domain::TenantId;
use domain::limits::{CONCURRENT_SCRIPTS, QUEUED_SCRIPTS, QUEUED_SCRIPTS_PER_TENANT};
use tokio::sync::oneshot;

#[derive(Clone, Default)]
pub(super) struct ScriptScheduler {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// Running scripts per tenant.
    running: HashMap<TenantId, usize>,
    /// Queued and running scripts per tenant.
    reserved: HashMap<TenantId, usize>,
    /// In order of arrival.
    waiting: Vec<(TenantId, oneshot::Sender<ScriptPermit>)>,
}

/// A place in the queue for a script that waits or runs. Released on drop.
pub(super) struct QueueSlot {
    scheduler: ScriptScheduler,
    tenant: TenantId,
}

/// Permission to run a script. Released on drop.
pub(super) struct ScriptPermit {
    scheduler: ScriptScheduler,
    tenant: TenantId,
}

impl ScriptScheduler {
    /// Reserves a place in the queue. `None` if the queue, or the tenant's share of it, is full.
    pub(super) fn reserve(&self, tenant: TenantId) -> Option<QueueSlot> {
        let mut state = self.state();
        let all: usize = state.reserved.values().sum();
        let own = state.reserved.get(&tenant).copied().unwrap_or_default();
        if all >= QUEUED_SCRIPTS || own >= QUEUED_SCRIPTS_PER_TENANT {
            return None;
        }
        state.reserved.insert(tenant, own + 1);
        Some(QueueSlot { scheduler: self.clone(), tenant })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Grants free permits to waiting scripts: first to the tenant with the fewest running, then in order of arrival.
    fn grant_permits(&self) {
        loop {
            let mut state = self.state();
            state.waiting.retain(|(_, waiter)| !waiter.is_closed());
            if state.running.values().sum::<usize>() >= CONCURRENT_SCRIPTS {
                return;
            }
            let running = |tenant: &TenantId| state.running.get(tenant).copied().unwrap_or_default();
            let next = state.waiting.iter().enumerate().min_by_key(|(_, (tenant, _))| running(tenant));
            let Some(next) = next.map(|(index, _)| index) else { return };
            let (tenant, waiter) = state.waiting.remove(next);
            *state.running.entry(tenant).or_default() += 1;
            drop(state);
            // If the waiter has just given up, dropping its permit grants it to another.
            let _ = waiter.send(ScriptPermit { scheduler: self.clone(), tenant });
        }
    }
}

impl QueueSlot {
    /// Waits for a permit.
    pub(super) async fn acquire(&self) -> ScriptPermit {
        let (sender, permit) = oneshot::channel();
        self.scheduler.state().waiting.push((self.tenant, sender));
        self.scheduler.grant_permits();
        permit.await.expect("a waiter stays in the list until it gets a permit")
    }
}

impl Drop for QueueSlot {
    fn drop(&mut self) {
        decrement(&mut self.scheduler.state().reserved, self.tenant);
    }
}

impl Drop for ScriptPermit {
    fn drop(&mut self) {
        decrement(&mut self.scheduler.state().running, self.tenant);
        self.scheduler.grant_permits();
    }
}

fn decrement(counts: &mut HashMap<TenantId, usize>, tenant: TenantId) {
    let Some(count) = counts.get_mut(&tenant) else { return };
    *count -= 1;
    if *count == 0 {
        counts.remove(&tenant);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    const ONE: TenantId = TenantId(1);
    const OTHER: TenantId = TenantId(2);

    type Acquire<'a> = Pin<Box<dyn Future<Output = ScriptPermit> + 'a>>;

    /// The permit, if it has been granted.
    fn poll(acquire: &mut Acquire<'_>) -> Option<ScriptPermit> {
        match acquire.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(permit) => Some(permit),
            Poll::Pending => None,
        }
    }

    fn slots(scheduler: &ScriptScheduler, tenant: TenantId, count: usize) -> Vec<QueueSlot> {
        (0..count).map(|_| scheduler.reserve(tenant).expect("the queue has capacity")).collect()
    }

    /// Requirement Q12.
    #[test]
    fn a_tenant_has_at_most_half_of_the_script_permits_while_another_waits() {
        let scheduler = ScriptScheduler::default();
        let own = slots(&scheduler, ONE, CONCURRENT_SCRIPTS + 1);
        let others = slots(&scheduler, OTHER, CONCURRENT_SCRIPTS);
        let mut waiting: Vec<Acquire<'_>> = own.iter().map(|slot| Box::pin(slot.acquire()) as Acquire<'_>).collect();
        let mut running: Vec<ScriptPermit> = waiting.iter_mut().filter_map(poll).collect();
        assert_eq!(running.len(), CONCURRENT_SCRIPTS, "all permits, while no other tenant waits");
        let mut last = waiting.pop().expect("one waits");
        let mut theirs: Vec<Acquire<'_>> = others.iter().map(|slot| Box::pin(slot.acquire()) as Acquire<'_>).collect();
        assert!(theirs.iter_mut().all(|acquire| poll(acquire).is_none()), "no permit is free");
        let mut granted = Vec::new();
        for _ in 0..CONCURRENT_SCRIPTS / 2 {
            running.pop();
            assert!(poll(&mut last).is_none(), "it arrived first, but its tenant has more running");
            granted.push(poll(&mut theirs.remove(0)).expect("the other tenant's permit"));
        }
        running.pop();
        assert!(poll(&mut theirs[0]).is_none());
        running.push(poll(&mut last).expect("the first tenant's permit"));
        granted.pop();
        assert!(poll(&mut theirs[0]).is_some());
    }

    /// Requirement Q12.
    #[test]
    fn the_permit_of_an_abandoned_wait_goes_to_the_next_waiter() {
        let scheduler = ScriptScheduler::default();
        let slots = slots(&scheduler, ONE, CONCURRENT_SCRIPTS + 2);
        let mut waiting: Vec<Acquire<'_>> = slots.iter().map(|slot| Box::pin(slot.acquire()) as Acquire<'_>).collect();
        let mut running: Vec<ScriptPermit> = waiting.iter_mut().filter_map(poll).collect();
        drop(waiting.remove(CONCURRENT_SCRIPTS));
        running.pop();
        assert!(poll(&mut waiting[CONCURRENT_SCRIPTS]).is_some());
    }

    /// Requirement Q12.
    #[test]
    fn a_tenant_reserves_at_most_half_of_the_script_queue() {
        let scheduler = ScriptScheduler::default();
        let own: Vec<QueueSlot> = std::iter::from_fn(|| scheduler.reserve(ONE)).collect();
        assert_eq!(own.len(), QUEUED_SCRIPTS_PER_TENANT);
        assert!(scheduler.reserve(OTHER).is_some());
        drop(own);
        assert!(scheduler.reserve(ONE).is_some());
    }
}
