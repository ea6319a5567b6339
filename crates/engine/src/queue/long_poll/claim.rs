//! A claim that waits for jobs, and releases them if the caller disconnects.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::{Affinity, TenantId, WorkerId};
use store::access::tokens::Serves;
use store::db::notifier::{Subscription, Topic};
use store::queue::claim::{Claimed, ClaimedJob};
use store::queue::claim_gate::{Attempt, Waiter};
use store::queue::settle::{End, Outcome};
use store::{Store, StoreError};
use tokio::runtime::Handle;

use super::{POLL, jittered};

/// Tenants that a worker which serves every tenant subscribes to.
const SUBSCRIBED_TENANTS: usize = 100;
/// Poll interval for the other tenants, on PostgreSQL.
const POLL_UNSUBSCRIBED: Duration = Duration::from_millis(100);

/// The parameters of a claim.
pub struct ClaimRequest {
    pub store: Store,
    pub tenant: TenantId,
    pub worker: WorkerId,
    /// The tenants that the worker serves in addition to its own.
    pub serves: Option<Serves>,
    pub max: usize,
    pub affinity: Affinity,
}

/// Claims jobs, waiting up to `wait` for some, or until `stop` completes. If the future is dropped, the jobs that were
/// claimed meanwhile are released at once.
pub async fn claim(claim: ClaimRequest, wait: Duration, stop: impl Future<Output = ()>) -> Result<Claimed, StoreError> {
    let poll = claim.poll();
    claim_polling(claim, poll, wait, stop).await
}

async fn claim_polling(
    claim: ClaimRequest,
    poll: Duration,
    wait: Duration,
    stop: impl Future<Output = ()>,
) -> Result<Claimed, StoreError> {
    let claim = Arc::new(claim);
    let first = attempt(&claim).await?;
    let claim_filter = match &first {
        Claimed::Jobs { jobs, claim_filter, draining: false, .. }
            if jobs.is_empty() && !wait.is_zero() && claim.max > 0 =>
        {
            claim_filter.clone()
        }
        _ => return Ok(first),
    };
    let until = Instant::now() + wait;
    let tenants = claim.subscribed_tenants().await?;
    let queues = |tenant| claim_filter.queues.iter().map(move |queue| Topic::Ready(tenant, queue.clone()));
    let ready = claim.store.notifier().subscribe(tenants.into_iter().flat_map(queues));
    let own = claim.store.notifier().subscribe([Topic::Worker(claim.worker)]);
    let waiter = claim.store.claim_gate().join(claim.tenant, claim.serves.clone(), claim_filter.clone());
    let mut stop = std::pin::pin!(stop);
    let mut permit = None;
    loop {
        // Subscribe before claiming: a job committed between the two would otherwise wait a full poll.
        let claimed = attempt(&claim).await?;
        let current: Option<Attempt<'_>> = permit.take();
        match &claimed {
            Claimed::Jobs { jobs, draining: false, may_have_more, .. } if jobs.is_empty() => {
                current.filter(|_| !may_have_more).into_iter().for_each(Attempt::miss);
            }
            Claimed::Jobs { jobs, .. } if !jobs.is_empty() => {
                current.into_iter().for_each(Attempt::hit);
                return Ok(claimed);
            }
            _ => return Ok(claimed),
        }
        let remaining = until.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return Ok(claimed);
        }
        permit = tokio::select! {
            permit = next_attempt(&ready, &waiter) => Some(permit),
            () = own.notified() => None,
            () = tokio::time::sleep(jittered(poll).min(remaining)) => None,
            () = &mut stop => return Ok(claimed),
        };
    }
}

/// Waits for a notification that no other waiter's attempt has already answered.
async fn next_attempt<'l>(ready: &Subscription, waiter: &'l Waiter) -> Attempt<'l> {
    loop {
        ready.notified().await;
        if let Some(permit) = waiter.acquire().await {
            return permit;
        }
    }
}

/// Claims once, in a task of its own. A commit cannot be undone, so the task must outlive a caller that disconnects.
async fn attempt(claim: &Arc<ClaimRequest>) -> Result<Claimed, StoreError> {
    let request = claim.clone();
    let taken = claim.store.carry_on(async move {
        let claimed = request.claim_once().await?;
        Ok::<_, StoreError>(ClaimInTransit { claim: request, claimed: Some(claimed) })
    });
    match taken.await {
        Ok(in_transit) => Ok(in_transit?.received()),
        Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
        // The runtime is shutting down, and this future with it.
        Err(_) => std::future::pending().await,
    }
}

impl ClaimRequest {
    async fn claim_once(&self) -> Result<Claimed, StoreError> {
        let Self { store, tenant, worker, serves, max, affinity } = self;
        match serves {
            None => store.claim(*tenant, *worker, *max, affinity.clone()).await,
            Some(serves) => store.claim_serving(*tenant, *worker, serves, *max, affinity.clone()).await,
        }
    }

    /// The tenants whose notifications are subscribed. The poll finds the jobs of the others.
    async fn subscribed_tenants(&self) -> Result<Vec<TenantId>, StoreError> {
        Ok(match &self.serves {
            None => vec![self.tenant],
            Some(Serves::Tenants(tenants)) => tenants.iter().map(|(id, _)| *id).chain([self.tenant]).collect(),
            Some(Serves::Everyone) => {
                self.store.list_tenants(None, SUBSCRIBED_TENANTS).await?.into_iter().map(|tenant| tenant.id).collect()
            }
        })
    }

    fn poll(&self) -> Duration {
        let has_all = !matches!(self.serves, Some(Serves::Everyone));
        if has_all || !self.store.is_postgres() { POLL } else { POLL_UNSUBSCRIBED }
    }

    async fn release(&self, jobs: Vec<ClaimedJob>) {
        let released = |job: ClaimedJob| Outcome { job: job.id, epoch: job.epoch, end: End::Release };
        let outcomes = jobs.into_iter().map(released).collect();
        let settled = match &self.serves {
            None => self.store.settle(self.tenant, self.worker, outcomes).await,
            Some(serves) => self.store.settle_serving(self.tenant, self.worker, serves, outcomes).await,
        };
        if let Err(error) = settled {
            tracing::warn!(worker = %self.worker, %error, "failed to release the jobs of a disconnected caller");
        }
    }
}

/// Claimed jobs that the caller has not received yet. Dropping it releases them.
struct ClaimInTransit {
    claim: Arc<ClaimRequest>,
    claimed: Option<Claimed>,
}

impl ClaimInTransit {
    fn received(mut self) -> Claimed {
        self.claimed.take().expect("received once")
    }
}

impl Drop for ClaimInTransit {
    fn drop(&mut self) {
        let Some(Claimed::Jobs { jobs, .. }) = self.claimed.take() else { return };
        if !jobs.is_empty() && Handle::try_current().is_ok() {
            let claim = self.claim.clone();
            self.claim.store.carry_on(async move { claim.release(jobs).await });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    use store::queue::enqueue::{Extras, NewJob};
    use store::queue::workers::register::NewWorker;
    use testkit::{job, label, name, on_both};
    use tokio::task::JoinSet;

    use super::*;

    const T: TenantId = TenantId::DEFAULT;
    const TIMEOUT: Duration = Duration::from_secs(60);

    async fn claim_by(store: &Store, worker: WorkerId, wait: Duration) -> Result<Claimed, StoreError> {
        let claim =
            super::ClaimRequest { store: store.clone(), tenant: T, worker, serves: None, max: 10, affinity: None };
        super::claim(claim, wait, std::future::pending()).await
    }

    async fn register(store: &Store) -> WorkerId {
        let lease_ms = 3_600_000;
        let queues = vec![name("q")];
        let worker = NewWorker { name: "w".into(), queues, kinds: None, affinities: None, lease_ms };
        store.register_worker(T, worker).await.expect("registers")
    }

    /// Polls the call once and drops it: at once, or when the result is ready but not received.
    async fn poll_and_drop(call: impl Future<Output = Result<Claimed, StoreError>>, answered: bool) {
        let mut call = pin!(call);
        let mut polled = false;
        poll_fn(|context| {
            if polled {
                return Poll::Ready(());
            }
            polled = true;
            assert!(call.as_mut().poll(context).is_pending(), "the runtime has a single thread");
            if answered { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
    }

    /// Jobs with subjects and plain jobs. PostgreSQL locks the former in batches and the latter one by one.
    /// Requirement Q6.
    #[tokio::test]
    async fn each_waiting_claim_gets_a_job_by_notification_without_a_poll() {
        const WAITING: usize = 40;
        on_both(async |db| {
            let never = Duration::from_secs(3_600);
            let mut waiting = JoinSet::new();
            for _ in 0..WAITING {
                let (store, worker) = (db.store.clone(), register(&db.store).await);
                let claim = super::ClaimRequest { store, tenant: T, worker, serves: None, max: 1, affinity: None };
                waiting.spawn(claim_polling(claim, never, TIMEOUT, std::future::pending()));
            }
            let on = |subject: usize| Extras { subject: Some(label(&format!("s{subject}"))), ..Extras::default() };
            let guarded = |number| NewJob { extras: Some(Box::new(on(number))), ..job("q") };
            let jobs = (0..WAITING).map(|number| if number % 2 == 0 { guarded(number) } else { job("q") });
            db.store.enqueue(T, jobs.collect(), None).await.expect("enqueues");
            let got = waiting.join_all().await.into_iter().flat_map(|claimed| match claimed.expect("claims") {
                Claimed::Jobs { jobs, .. } => jobs,
                other => panic!("the worker is alive: {other:?}"),
            });
            let got: HashSet<_> = got.map(|job| job.id).collect();
            assert_eq!(got.len(), WAITING, "a waiter was not notified");
        })
        .await;
    }

    /// Requirement Q7.
    #[tokio::test]
    async fn jobs_claimed_for_a_disconnected_caller_are_released_immediately() {
        on_both(async |db| {
            let (leaver, stayer) = (register(&db.store).await, register(&db.store).await);
            for answered in [false, true] {
                db.store.enqueue(T, vec![job("q"), job("q")], None).await.expect("enqueues");
                poll_and_drop(claim_by(&db.store, leaver, Duration::ZERO), answered).await;
                let mut got = Vec::new();
                while got.len() < 2 {
                    match claim_by(&db.store, stayer, TIMEOUT).await.expect("claims") {
                        Claimed::Jobs { jobs, .. } if !jobs.is_empty() => got.extend(jobs),
                        other => panic!("the jobs were not released: {other:?}"),
                    }
                }
                assert!(got.iter().all(|job| job.attempt == 1), "no attempt was used up: {got:?}");
                let end = |job: ClaimedJob| Outcome { job: job.id, epoch: job.epoch, end: End::Finish(None) };
                let outcomes = got.into_iter().map(end).collect();
                db.store.settle(T, stayer, outcomes).await.expect("settles");
            }
        })
        .await;
    }
}
