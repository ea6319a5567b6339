//! A claim that waits for something to claim, and leaves nothing with a caller that left.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::{Affinity, TenantId, WorkerId};
use store::hints::{Listener, Topic};
use store::jobs::claim::{Claimed, ClaimedJob};
use store::jobs::settle::{End, Outcome};
use store::lines::{InLine, Look};
use store::tokens::Serves;
use store::{Store, StoreError};
use tokio::runtime::Handle;

use super::{POLL, jittered};

/// Tenants whose hints a worker that serves everyone listens to.
const SERVED_HEARD: usize = 100;
/// How often it looks for the others, on PostgreSQL.
const POLL_UNHEARD: Duration = Duration::from_millis(100);

/// A claim to be made: whose worker asks, and for how much.
pub struct Claim {
    pub store: Store,
    pub tenant: TenantId,
    pub worker: WorkerId,
    /// Whose work it takes beside its own tenant's.
    pub serves: Option<Serves>,
    pub max: usize,
    pub affinity: Affinity,
}

/// Claims, waiting up to `wait` for something to claim. Stops waiting when `stop` completes. Who drops this half way has
/// claimed nothing: what was taken meanwhile goes back to its queue at once.
pub async fn claim(claim: Claim, wait: Duration, stop: impl Future<Output = ()>) -> Result<Claimed, StoreError> {
    let poll = claim.poll();
    claim_polling(claim, poll, wait, stop).await
}

async fn claim_polling(
    claim: Claim,
    poll: Duration,
    wait: Duration,
    stop: impl Future<Output = ()>,
) -> Result<Claimed, StoreError> {
    let claim = Arc::new(claim);
    let first = look(&claim).await?;
    let takes = match &first {
        Claimed::Jobs { jobs, takes, draining: false, .. } if jobs.is_empty() && !wait.is_zero() && claim.max > 0 => {
            takes.clone()
        }
        _ => return Ok(first),
    };
    let until = Instant::now() + wait;
    let tenants = claim.heard().await?;
    let queues = |tenant| takes.queues.iter().map(move |queue| Topic::Ready(tenant, queue.clone()));
    let ready = claim.store.hints().listen(tenants.into_iter().flat_map(queues));
    let own = claim.store.hints().listen([Topic::Worker(claim.worker)]);
    let line = claim.store.lines().join(claim.tenant, claim.serves.clone(), takes.clone());
    let mut stop = std::pin::pin!(stop);
    let mut turn = None;
    loop {
        // Subscribed before looking: a job committed between the first look and now is seen by this one.
        let claimed = look(&claim).await?;
        let in_turn: Option<Look<'_>> = turn.take();
        match &claimed {
            Claimed::Jobs { jobs, draining: false, hindered, .. } if jobs.is_empty() => {
                in_turn.filter(|_| !hindered).into_iter().for_each(Look::was_in_vain);
            }
            Claimed::Jobs { jobs, .. } if !jobs.is_empty() => {
                in_turn.into_iter().for_each(Look::found_something);
                return Ok(claimed);
            }
            _ => return Ok(claimed),
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(claimed);
        }
        turn = tokio::select! {
            turn = told(&ready, &line) => Some(turn),
            () = own.hint() => None,
            () = tokio::time::sleep(jittered(poll).min(left)) => None,
            () = &mut stop => return Ok(claimed),
        };
    }
}

/// Waits for a hint that nobody else has looked into for all.
async fn told<'l>(ready: &Listener, line: &'l InLine) -> Look<'l> {
    loop {
        ready.hint().await;
        if let Some(turn) = line.turn().await {
            return turn;
        }
    }
}

/// A task of its own: a commit cannot be called back, so somebody must be there when it is done.
async fn look(claim: &Arc<Claim>) -> Result<Claimed, StoreError> {
    let taking = claim.clone();
    let taken = claim.store.carry_on(async move {
        let claimed = taking.take().await?;
        Ok::<_, StoreError>(Handed { claim: taking, claimed: Some(claimed) })
    });
    match taken.await {
        Ok(handed) => Ok(handed?.received()),
        Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
        // The runtime ends, and whoever waits here with it.
        Err(_) => std::future::pending().await,
    }
}

impl Claim {
    async fn take(&self) -> Result<Claimed, StoreError> {
        let Self { store, tenant, worker, serves, max, affinity } = self;
        match serves {
            None => store.claim(*tenant, *worker, *max, affinity.clone()).await,
            Some(serves) => store.claim_serving(*tenant, *worker, serves, *max, affinity.clone()).await,
        }
    }

    /// The tenants whose hints are listened to. Whoever is not heard is found by the poll.
    async fn heard(&self) -> Result<Vec<TenantId>, StoreError> {
        Ok(match &self.serves {
            None => vec![self.tenant],
            Some(Serves::Tenants(tenants)) => tenants.iter().map(|(id, _)| *id).chain([self.tenant]).collect(),
            Some(Serves::Everyone) => {
                self.store.list_tenants(None, SERVED_HEARD).await?.into_iter().map(|tenant| tenant.id).collect()
            }
        })
    }

    fn poll(&self) -> Duration {
        let hears_all = !matches!(self.serves, Some(Serves::Everyone));
        if hears_all || !self.store.is_postgres() { POLL } else { POLL_UNHEARD }
    }

    async fn give_back(&self, jobs: Vec<ClaimedJob>) {
        let released = |job: ClaimedJob| Outcome { job: job.id, epoch: job.epoch, end: End::Release };
        let outcomes = jobs.into_iter().map(released).collect();
        let settled = match &self.serves {
            None => self.store.settle(self.tenant, self.worker, outcomes).await,
            Some(serves) => self.store.settle_serving(self.tenant, self.worker, serves, outcomes).await,
        };
        if let Err(error) = settled {
            tracing::warn!(worker = %self.worker, %error, "what a caller that left has claimed stays with its worker");
        }
    }
}

/// What was taken, on its way to whoever asked for it.
struct Handed {
    claim: Arc<Claim>,
    claimed: Option<Claimed>,
}

impl Handed {
    fn received(mut self) -> Claimed {
        self.claimed.take().expect("it is received once")
    }
}

impl Drop for Handed {
    fn drop(&mut self) {
        let Some(Claimed::Jobs { jobs, .. }) = self.claimed.take() else { return };
        if !jobs.is_empty() && Handle::try_current().is_ok() {
            let claim = self.claim.clone();
            self.claim.store.carry_on(async move { claim.give_back(jobs).await });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    use store::jobs::enqueue::{Extras, NewJob};
    use store::workers::register::NewWorker;
    use testkit::{job, label, name, on_both};
    use tokio::task::JoinSet;

    use super::*;

    const T: TenantId = TenantId::DEFAULT;
    const PATIENCE: Duration = Duration::from_secs(60);

    async fn claim_by(store: &Store, worker: WorkerId, wait: Duration) -> Result<Claimed, StoreError> {
        let claim = super::Claim { store: store.clone(), tenant: T, worker, serves: None, max: 10, affinity: None };
        super::claim(claim, wait, std::future::pending()).await
    }

    async fn register(store: &Store) -> WorkerId {
        let lease_ms = 3_600_000;
        let queues = vec![name("q")];
        let worker = NewWorker { name: "w".into(), queues, kinds: None, affinities: None, lease_ms };
        store.register_worker(T, worker).await.expect("registers")
    }

    /// Asks once, and leaves: at once, or when the answer is there but has not been taken.
    async fn asks_and_leaves(call: impl Future<Output = Result<Claimed, StoreError>>, answered: bool) {
        let mut call = pin!(call);
        let mut asked = false;
        poll_fn(|context| {
            if asked {
                return Poll::Ready(());
            }
            asked = true;
            assert!(call.as_mut().poll(context).is_pending(), "the one thread is here");
            if answered { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
    }

    /// Subjects and plain jobs, which PostgreSQL locks by the hundred and one by one.
    #[tokio::test]
    async fn q6_as_many_as_wait_hear_of_as_many_jobs_without_a_poll() {
        const WAITING: usize = 40;
        on_both(async |db| {
            let never = Duration::from_secs(3_600);
            let mut waiting = JoinSet::new();
            for _ in 0..WAITING {
                let (store, worker) = (db.store.clone(), register(&db.store).await);
                let claim = super::Claim { store, tenant: T, worker, serves: None, max: 1, affinity: None };
                waiting.spawn(claim_polling(claim, never, PATIENCE, std::future::pending()));
            }
            let on = |subject: usize| Extras { subject: Some(label(&format!("s{subject}"))), ..Extras::default() };
            let guarded = |number| NewJob { extras: Some(Box::new(on(number))), ..job("q") };
            let jobs = (0..WAITING).map(|number| if number % 2 == 0 { guarded(number) } else { job("q") });
            db.store.enqueue(T, jobs.collect(), None).await.expect("enqueues");
            let got = waiting.join_all().await.into_iter().flat_map(|claimed| match claimed.expect("claims") {
                Claimed::Jobs { jobs, .. } => jobs,
                other => panic!("it lives: {other:?}"),
            });
            let got: HashSet<_> = got.map(|job| job.id).collect();
            assert_eq!(got.len(), WAITING, "somebody heard nothing");
        })
        .await;
    }

    #[tokio::test]
    async fn q7_what_is_claimed_for_a_caller_that_left_goes_back_at_once() {
        on_both(async |db| {
            let (leaver, stayer) = (register(&db.store).await, register(&db.store).await);
            for answered in [false, true] {
                db.store.enqueue(T, vec![job("q"), job("q")], None).await.expect("enqueues");
                asks_and_leaves(claim_by(&db.store, leaver, Duration::ZERO), answered).await;
                let mut got = Vec::new();
                while got.len() < 2 {
                    match claim_by(&db.store, stayer, PATIENCE).await.expect("claims") {
                        Claimed::Jobs { jobs, .. } if !jobs.is_empty() => got.extend(jobs),
                        other => panic!("nobody gave them back: {other:?}"),
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
