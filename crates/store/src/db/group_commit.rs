//! Group commit: requests that arrive while a commit is in flight share the next one. Enqueue, settle and the journal use it.
//!
//! There is no timer. An idle group commit runs a lone request at once, and sixteen producers with one job each cost
//! one commit. Tenants take turns: a tenant that floods delays itself, and the request of another tenant is in the next
//! commit.
//!
//! SQLite's writer takes commits from a queue and should never wait for the next one, so two are in flight. On
//! PostgreSQL every commit is a round trip, so one is in flight. A second one starts only while the first is slow,
//! because it is large or waits for a lock.

use std::collections::{HashMap, VecDeque};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::TenantId;
use domain::limits::{PENDING_COMMIT_BYTES, SHARED_COMMIT_BYTES, SHARED_COMMIT_JOBS, SHARED_COMMIT_REQUESTS};
use tokio::sync::oneshot;

use crate::db::tx::Operation;
use crate::error::StoreError;
use crate::queue::enqueue::{EnqueueBatch, EnqueueReply, EnqueueRequest};
use crate::queue::settle::{SettleBatch, SettleReply, SettleRequest};
use crate::store::Store;
use crate::workflows::journal::write::{JournalBatch, JournalReply, JournalRequest};

/// Maximum number of commits of one kind in flight.
const MAX_IN_FLIGHT: usize = 2;
/// A commit that takes longer than this allows a second one beside it.
const SLOW_COMMIT: Duration = Duration::from_millis(10);
/// Maximum number of times a runner yields on PostgreSQL while most callers of the last commit have not submitted
/// again. Callers in this process do so at once.
const COALESCE_YIELDS: usize = 2;

pub(crate) struct GroupCommits {
    pub(crate) enqueue: GroupCommit<EnqueueBatch>,
    pub(crate) settle: GroupCommit<SettleBatch>,
    pub(crate) journal: GroupCommit<JournalBatch>,
}

impl GroupCommits {
    pub(crate) fn on_sqlite() -> Self {
        Self {
            enqueue: GroupCommit::of(MAX_IN_FLIGHT),
            settle: GroupCommit::of(MAX_IN_FLIGHT),
            journal: GroupCommit::of(MAX_IN_FLIGHT),
        }
    }

    pub(crate) fn on_postgres() -> Self {
        Self { enqueue: GroupCommit::of(1), settle: GroupCommit::of(1), journal: GroupCommit::of(1) }
    }
}

/// An operation built from the requests of many callers, with one reply for each, in order.
pub(crate) trait Batch: Operation<Output = Vec<Self::Reply>> + Sized {
    type Request: Send + 'static;
    type Reply: Send + 'static;

    fn batcher(store: &Store) -> &GroupCommit<Self>;
    fn of(store: &Store, requests: Vec<Self::Request>) -> Self;
    fn size(request: &Self::Request) -> RequestSize;
    fn tenant_of(request: &Self::Request) -> TenantId;
    /// Runs after the commit.
    fn committed(store: &Store, replies: &[Self::Reply]);
}

/// What a request adds to its commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestSize {
    pub(crate) jobs: usize,
    /// Bytes of payloads or results.
    pub(crate) bytes: usize,
}

struct PendingRequest<B: Batch> {
    request: B::Request,
    size: RequestSize,
    answer: Answer<B>,
}

type Answer<B> = oneshot::Sender<Result<<B as Batch>::Reply, StoreError>>;
/// Whether the caller must start a runner, and the channel of its reply.
type Submitted<B> = (bool, oneshot::Receiver<Result<<B as Batch>::Reply, StoreError>>);

pub(crate) struct GroupCommit<B: Batch> {
    /// Maximum number of commits in flight that are not slow.
    max_in_flight: usize,
    state: Mutex<QueueState<B>>,
}

struct QueueState<B: Batch> {
    /// Tenants with pending requests, in the order of their turns.
    turns: VecDeque<TenantId>,
    waiting: HashMap<TenantId, VecDeque<PendingRequest<B>>>,
    /// Number of pending requests.
    pending_requests: usize,
    /// Bytes of pending requests and of those in flight.
    pending_bytes: usize,
    /// Number of requests in the last commit.
    last_batch: usize,
    in_flight: usize,
    /// Number of commits in flight that are slow.
    slow: usize,
}

impl<B: Batch> QueueState<B> {
    /// Acquires a runner permit, if one is available.
    fn start(&mut self, max_in_flight: usize) -> bool {
        let start = self.in_flight - self.slow < max_in_flight && self.in_flight < MAX_IN_FLIGHT;
        self.in_flight += usize::from(start);
        start
    }
}

impl<B: Batch> GroupCommit<B> {
    fn of(max_in_flight: usize) -> Self {
        let (turns, waiting) = (VecDeque::new(), HashMap::new());
        Self {
            max_in_flight,
            state: Mutex::new(QueueState {
                turns,
                waiting,
                pending_requests: 0,
                pending_bytes: 0,
                last_batch: 0,
                in_flight: 0,
                slow: 0,
            }),
        }
    }

    /// Queues a request. Fails if too many bytes are pending.
    fn submit(&self, request: B::Request) -> Result<Submitted<B>, StoreError> {
        let (reply, receiver) = oneshot::channel();
        let (tenant, size) = (B::tenant_of(&request), B::size(&request));
        let mut state = self.state.lock().expect("lock poisoned");
        if state.pending_bytes > 0 && state.pending_bytes + size.bytes > PENDING_COMMIT_BYTES {
            return Err(StoreError::unavailable("too many bytes wait for a commit"));
        }
        let waiting = state.waiting.entry(tenant).or_default();
        waiting.push_back(PendingRequest { request, size, answer: reply });
        if waiting.len() == 1 {
            state.turns.push_back(tenant);
        }
        state.pending_requests += 1;
        state.pending_bytes += size.bytes;
        Ok((state.start(self.max_in_flight), receiver))
    }

    /// Returns true if no request is pending or other runners suffice, and then releases the runner's permit. Both
    /// happen under one lock, so that a request that arrives now starts a new runner.
    fn is_done(&self) -> bool {
        let mut state = self.state.lock().expect("lock poisoned");
        let is_done = state.waiting.is_empty() || state.in_flight - state.slow > self.max_in_flight;
        state.in_flight -= usize::from(is_done);
        is_done
    }

    /// Marks a commit as slow. Returns whether the pending requests need another runner.
    fn is_slow(&self) -> bool {
        let mut state = self.state.lock().expect("lock poisoned");
        state.slow += 1;
        !state.waiting.is_empty() && state.start(self.max_in_flight)
    }

    /// Returns true if most callers of the last commit have not submitted again.
    fn should_wait_for_more(&self) -> bool {
        let state = self.state.lock().expect("lock poisoned");
        self.max_in_flight == 1 && state.pending_requests * 4 < state.last_batch * 3
    }

    /// Takes as many requests as fit into one commit, tenants in turn. Returns also their bytes.
    fn take_batch(&self) -> (Vec<B::Request>, Vec<Answer<B>>, usize) {
        let mut state = self.state.lock().expect("lock poisoned");
        let (mut requests, mut answers) = (Vec::new(), Vec::new());
        let mut total = RequestSize::default();
        while let Some(tenant) = state.turns.pop_front() {
            let waiting = state.waiting.get_mut(&tenant).expect("a tenant with a turn has a request");
            let size = waiting.front().map_or(RequestSize::default(), |next| next.size);
            let is_full = total.jobs + size.jobs > SHARED_COMMIT_JOBS
                || total.bytes + size.bytes > SHARED_COMMIT_BYTES
                || requests.len() >= SHARED_COMMIT_REQUESTS;
            if !requests.is_empty() && is_full {
                // This tenant is the first of the next commit.
                state.turns.push_front(tenant);
                break;
            }
            let taken = waiting.pop_front();
            if waiting.is_empty() {
                state.waiting.remove(&tenant);
            } else {
                state.turns.push_back(tenant);
            }
            if let Some(PendingRequest { request, answer, .. }) = taken {
                requests.push(request);
                answers.push(answer);
                total = RequestSize { jobs: total.jobs + size.jobs, bytes: total.bytes + size.bytes };
            }
        }
        state.pending_requests -= requests.len();
        state.last_batch = requests.len();
        (requests, answers, total.bytes)
    }

    /// The bytes of a commit are no longer in memory.
    fn release(&self, bytes: usize) {
        self.state.lock().expect("lock poisoned").pending_bytes -= bytes;
    }

    async fn run(&self, store: &Store) {
        let mut permit = RunnerPermit { batcher: self, is_slow: false, bytes: Arc::default() };
        while !self.is_done() {
            for _ in 0..COALESCE_YIELDS {
                if self.should_wait_for_more() {
                    tokio::task::yield_now().await;
                }
            }
            // Requests are taken when a transaction is available, not when it is requested, so that later arrivals
            // share it.
            let taken: Arc<Mutex<Vec<Answer<B>>>> = Arc::default();
            let late = {
                let (store, taken, in_commit) = (store.clone(), taken.clone(), permit.bytes.clone());
                move || {
                    let (requests, answers, bytes) = B::batcher(&store).take_batch();
                    *taken.lock().expect("lock poisoned") = answers;
                    in_commit.store(bytes, Ordering::Relaxed);
                    B::of(&store, requests)
                }
            };
            let written = permit.watch(store, store.write_late(late)).await;
            permit.release_bytes();
            let mut answers = std::mem::take(&mut *taken.lock().expect("lock poisoned"));
            match written {
                Ok(replies) => {
                    B::committed(store, &replies);
                    for (answer, reply) in answers.into_iter().zip(replies) {
                        let _ = answer.send(Ok(reply));
                    }
                }
                Err(error) => {
                    // No transaction was available, so no request was taken. Every pending request fails with the
                    // reason.
                    if answers.is_empty() {
                        let (_, refused, bytes) = self.take_batch();
                        self.release(bytes);
                        answers = refused;
                    }
                    for answer in answers {
                        let _ = answer.send(Err(error.share()));
                    }
                }
            }
        }
        std::mem::forget(permit);
    }
}

/// The permit of a runner. A panic releases it too: its callers get an error, and the next request starts a runner.
struct RunnerPermit<'b, B: Batch> {
    batcher: &'b GroupCommit<B>,
    /// The commit in flight is slow.
    is_slow: bool,
    /// Bytes of the commit in flight.
    bytes: Arc<AtomicUsize>,
}

impl<B: Batch> RunnerPermit<'_, B> {
    /// Awaits a commit. After `SLOW_COMMIT` a second runner may start.
    async fn watch<T>(&mut self, store: &Store, commit: impl Future<Output = T>) -> T {
        let mut commit = pin!(commit);
        if let Ok(written) = tokio::time::timeout(SLOW_COMMIT, commit.as_mut()).await {
            return written;
        }
        self.is_slow = true;
        if self.batcher.is_slow() {
            store.run_batches::<B>();
        }
        let written = commit.await;
        self.finish();
        written
    }

    fn release_bytes(&self) {
        self.batcher.release(self.bytes.swap(0, Ordering::Relaxed));
    }

    fn finish(&mut self) {
        let was_slow = std::mem::take(&mut self.is_slow);
        self.batcher.state.lock().expect("lock poisoned").slow -= usize::from(was_slow);
    }
}

impl<B: Batch> Drop for RunnerPermit<'_, B> {
    fn drop(&mut self) {
        self.finish();
        self.release_bytes();
        self.batcher.state.lock().expect("lock poisoned").in_flight -= 1;
    }
}

impl Store {
    pub(crate) async fn shared_enqueue(&self, request: EnqueueRequest) -> Result<EnqueueReply, StoreError> {
        self.shared::<EnqueueBatch>(request).await
    }

    pub(crate) async fn shared_settle(&self, request: SettleRequest) -> Result<SettleReply, StoreError> {
        self.shared::<SettleBatch>(request).await
    }

    pub(crate) async fn shared_journal(&self, request: JournalRequest) -> Result<JournalReply, StoreError> {
        self.shared::<JournalBatch>(request).await
    }

    async fn shared<B: Batch>(&self, request: B::Request) -> Result<B::Reply, StoreError> {
        let (start, answer) = B::batcher(self).submit(request)?;
        if start {
            self.run_batches::<B>();
        }
        answer.await.map_err(|_| StoreError::unexpected("a request was dropped"))?
    }

    /// The caller holds a runner permit.
    fn run_batches<B: Batch>(&self) {
        let store = self.clone();
        self.carry_on(async move { B::batcher(&store).run(&store).await });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::tx::Tx;

    /// A request of a tenant with this number of jobs.
    struct Turns;
    struct Asked(i64, usize, usize);

    impl Operation for Turns {
        type Output = Vec<()>;

        async fn run(&self, _: &mut Tx<'_>) -> Result<Vec<()>, StoreError> {
            Ok(Vec::new())
        }
    }

    impl Batch for Turns {
        type Request = Asked;
        type Reply = ();

        fn batcher(_: &Store) -> &GroupCommit<Self> {
            unreachable!("the tests take turns by hand")
        }

        fn of(_: &Store, _: Vec<Asked>) -> Self {
            Self
        }

        fn size(request: &Asked) -> RequestSize {
            RequestSize { jobs: request.1, bytes: request.2 }
        }

        fn tenant_of(request: &Asked) -> TenantId {
            TenantId(request.0)
        }

        fn committed(_: &Store, _: &[()]) {}
    }

    fn submit(batcher: &GroupCommit<Turns>, request: Asked) -> Submitted<Turns> {
        batcher.submit(request).expect("few bytes are pending")
    }

    fn next(batcher: &GroupCommit<Turns>) -> Vec<i64> {
        batcher.take_batch().0.into_iter().map(|request| request.0).collect()
    }

    /// Requirement Q12.
    #[test]
    fn a_flooding_tenant_does_not_exclude_others_from_the_next_commit() {
        let batcher = GroupCommit::<Turns>::of(1);
        let answers: Vec<_> = (0..100).map(|_| submit(&batcher, Asked(1, SHARED_COMMIT_JOBS, 0))).collect();
        let small = [submit(&batcher, Asked(2, 1, 0)), submit(&batcher, Asked(3, 1, 0))];
        assert_eq!(next(&batcher), [1], "what is full is full");
        assert_eq!(next(&batcher), [2, 3], "the others come before the flood goes on");
        assert_eq!(next(&batcher), [1]);
        drop((answers, small));
    }

    /// Requirement Q12.
    #[test]
    fn a_slow_commit_starts_a_second_runner() {
        let batcher = GroupCommit::<Turns>::of(1);
        let starts = |jobs: usize| submit(&batcher, Asked(1, jobs, 0)).0;
        assert!(starts(1), "the first has a runner at once");
        batcher.take_batch();
        assert!(!starts(1), "what comes meanwhile is for the next commit");
        assert!(batcher.is_slow(), "and no longer, once this one takes long");
        batcher.take_batch();
        assert!(!starts(1), "the second does not take long yet");
        assert!(!batcher.is_slow(), "there are never more than two");
        let mut permit = RunnerPermit { batcher: &batcher, is_slow: true, bytes: Arc::default() };
        permit.finish();
        assert!(!batcher.is_done(), "one goes on");
        permit.is_slow = true;
        permit.finish();
        assert!(batcher.is_done(), "and one is enough when neither takes long");
        std::mem::forget(permit);
    }

    #[test]
    fn two_batches_are_in_flight_if_the_writer_has_a_queue() {
        let batcher = GroupCommit::<Turns>::of(MAX_IN_FLIGHT);
        let starts: Vec<bool> = (0..3).map(|_| submit(&batcher, Asked(1, 1, 0)).0).collect();
        assert_eq!(starts, [true, true, false]);
    }

    #[test]
    fn a_runner_waits_for_most_callers_of_the_last_commit() {
        let batcher = GroupCommit::<Turns>::of(1);
        let mut answers = Vec::new();
        let mut come = |count: usize| answers.extend((0..count).map(|_| submit(&batcher, Asked(1, 1, 0))));
        come(1);
        assert!(!batcher.should_wait_for_more(), "no commit has completed yet");
        come(7);
        batcher.take_batch();
        come(5);
        assert!(batcher.should_wait_for_more());
        come(1);
        assert!(!batcher.should_wait_for_more(), "six of eight are enough");
    }

    /// Requirement Q12.
    #[test]
    fn requests_of_one_tenant_are_committed_in_order() {
        let batcher = GroupCommit::<Turns>::of(1);
        let answers: Vec<_> = (0..5).map(|number| submit(&batcher, Asked(1, number, 0))).collect();
        let taken: Vec<usize> = batcher.take_batch().0.into_iter().map(|request| request.1).collect();
        assert_eq!(taken, [0, 1, 2, 3, 4]);
        assert!(next(&batcher).is_empty());
        drop(answers);
    }

    /// Requirement B1.
    #[test]
    fn a_commit_and_the_queue_before_it_are_bounded_in_bytes() {
        let batcher = GroupCommit::<Turns>::of(1);
        let half = SHARED_COMMIT_BYTES / 2;
        let answers: Vec<_> = (0..3).map(|_| submit(&batcher, Asked(1, 1, half))).collect();
        assert_eq!(next(&batcher), [1, 1], "two halves fill a commit");
        assert_eq!(next(&batcher), [1]);
        batcher.release(3 * half);
        let large = submit(&batcher, Asked(2, 1, 2 * PENDING_COMMIT_BYTES));
        assert!(batcher.submit(Asked(3, 1, 1)).is_err(), "nothing fits beside it");
        let (requests, _, bytes) = batcher.take_batch();
        assert_eq!(requests.len(), 1, "a request above the bound commits alone");
        assert!(batcher.submit(Asked(3, 1, 1)).is_err(), "bytes in flight count");
        batcher.release(bytes);
        assert!(batcher.submit(Asked(3, 1, 1)).is_ok());
        drop((answers, large));
    }
}
