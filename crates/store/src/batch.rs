//! Natural batching: callers that arrive while a commit is under way share the next one.
//!
//! No timer and no added latency: an idle batcher runs a lone request at once. Sixteen producers with one job each cost
//! one commit.

use std::collections::VecDeque;
use std::sync::Mutex;

use domain::limits::{SHARED_COMMIT_JOBS, SHARED_COMMIT_REQUESTS};
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

use crate::error::StoreError;
use crate::jobs::enqueue::{EnqueueBatch, EnqueueReply, EnqueueRequest};
use crate::jobs::settle::{SettleBatch, SettleReply, SettleRequest};
use crate::store::Store;
use crate::tx::Operation;

/// Commits of one kind under way at once: while one waits for the disk the next is being made.
const UNDER_WAY: usize = 2;

#[derive(Default)]
pub(crate) struct Batchers {
    pub(crate) enqueue: Batcher<EnqueueBatch>,
    pub(crate) settle: Batcher<SettleBatch>,
    tracker: TaskTracker,
}

/// An operation made of many callers' requests, with one answer for each, in order.
pub(crate) trait Batch: Operation<Output = Vec<Self::Reply>> + Sized {
    type Request: Send + 'static;
    type Reply: Send + 'static;

    fn of(store: &Store, requests: Vec<Self::Request>) -> Self;
    fn jobs(request: &Self::Request) -> usize;
    /// Runs once the commit holds.
    fn committed(store: &Store, replies: &[Self::Reply]);
}

type Waiting<B> = (<B as Batch>::Request, oneshot::Sender<Result<<B as Batch>::Reply, StoreError>>);

pub(crate) struct Batcher<B: Batch> {
    state: Mutex<State<B>>,
}

struct State<B: Batch> {
    waiting: VecDeque<Waiting<B>>,
    under_way: usize,
}

impl<B: Batch> Default for Batcher<B> {
    fn default() -> Self {
        Self { state: Mutex::new(State { waiting: VecDeque::new(), under_way: 0 }) }
    }
}

impl<B: Batch> Batcher<B> {
    fn submit(&self, request: B::Request) -> (bool, oneshot::Receiver<Result<B::Reply, StoreError>>) {
        let (reply, answer) = oneshot::channel();
        let mut state = self.state.lock().expect("no batcher panics");
        state.waiting.push_back((request, reply));
        let start = state.under_way < UNDER_WAY;
        if start {
            state.under_way += 1;
        }
        (start, answer)
    }

    /// As many requests as fit one commit. None means that the runner's place is given back: in the same breath, so that
    /// a request that comes in now starts a runner of its own.
    fn take(&self) -> Vec<Waiting<B>> {
        let mut state = self.state.lock().expect("no batcher panics");
        let mut taken = Vec::new();
        let mut jobs = 0;
        while let Some((request, _)) = state.waiting.front() {
            jobs += B::jobs(request);
            if !taken.is_empty() && (jobs > SHARED_COMMIT_JOBS || taken.len() >= SHARED_COMMIT_REQUESTS) {
                break;
            }
            taken.extend(state.waiting.pop_front());
        }
        if taken.is_empty() {
            state.under_way -= 1;
        }
        taken
    }

    async fn run(&self, store: &Store) {
        let place = Place { batcher: self };
        loop {
            let taken = self.take();
            if taken.is_empty() {
                return std::mem::forget(place);
            }
            let (requests, answers): (Vec<_>, Vec<_>) = taken.into_iter().unzip();
            match store.write(B::of(store, requests)).await {
                Ok(replies) => {
                    B::committed(store, &replies);
                    for (answer, reply) in answers.into_iter().zip(replies) {
                        let _ = answer.send(Ok(reply));
                    }
                }
                Err(error) => {
                    for answer in answers {
                        let _ = answer.send(Err(error.share()));
                    }
                }
            }
        }
    }
}

/// A runner's place. A panic gives it back too: the callers hear an error and the next one gets a runner.
struct Place<'b, B: Batch> {
    batcher: &'b Batcher<B>,
}

impl<B: Batch> Drop for Place<'_, B> {
    fn drop(&mut self) {
        self.batcher.state.lock().expect("no batcher panics").under_way -= 1;
    }
}

impl Store {
    pub(crate) async fn shared_enqueue(&self, request: EnqueueRequest) -> Result<EnqueueReply, StoreError> {
        let (start, answer) = self.batchers().enqueue.submit(request);
        if start {
            let store = self.clone();
            self.batchers().tracker.spawn(async move { store.batchers().enqueue.run(&store).await });
        }
        answer.await.map_err(|_| StoreError::unexpected("an enqueue was dropped"))?
    }

    pub(crate) async fn shared_settle(&self, request: SettleRequest) -> Result<SettleReply, StoreError> {
        let (start, answer) = self.batchers().settle.submit(request);
        if start {
            let store = self.clone();
            self.batchers().tracker.spawn(async move { store.batchers().settle.run(&store).await });
        }
        answer.await.map_err(|_| StoreError::unexpected("a settle was dropped"))?
    }
}
