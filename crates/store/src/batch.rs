//! Natural batching: callers that arrive while a commit is under way share the next one.
//!
//! No timer and no added latency: an idle batcher runs a lone request at once. Sixteen producers with one job each cost
//! one commit.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

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

    fn batcher(store: &Store) -> &Batcher<Self>;
    fn of(store: &Store, requests: Vec<Self::Request>) -> Self;
    fn jobs(request: &Self::Request) -> usize;
    /// Runs once the commit holds.
    fn committed(store: &Store, replies: &[Self::Reply]);
}

type Answer<B> = oneshot::Sender<Result<<B as Batch>::Reply, StoreError>>;

pub(crate) struct Batcher<B: Batch> {
    state: Mutex<State<B>>,
}

struct State<B: Batch> {
    waiting: VecDeque<(B::Request, Answer<B>)>,
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

    /// Whether there is nothing to do. If so the runner's place is given back: in the same breath, so that a request that
    /// comes in now starts a runner of its own.
    fn is_done(&self) -> bool {
        let mut state = self.state.lock().expect("no batcher panics");
        if state.waiting.is_empty() {
            state.under_way -= 1;
        }
        state.waiting.is_empty()
    }

    /// As many requests as fit one commit.
    fn take(&self) -> (Vec<B::Request>, Vec<Answer<B>>) {
        let mut state = self.state.lock().expect("no batcher panics");
        let (mut requests, mut answers) = (Vec::new(), Vec::new());
        let mut jobs = 0;
        while let Some((request, _)) = state.waiting.front() {
            jobs += B::jobs(request);
            if !requests.is_empty() && (jobs > SHARED_COMMIT_JOBS || requests.len() >= SHARED_COMMIT_REQUESTS) {
                break;
            }
            let Some((request, answer)) = state.waiting.pop_front() else { break };
            requests.push(request);
            answers.push(answer);
        }
        (requests, answers)
    }

    async fn run(&self, store: &Store) {
        let place = Place { batcher: self };
        while !self.is_done() {
            // Requests are taken when the transaction is open, not when it is asked for: who came meanwhile is in it.
            let taken: Arc<Mutex<Vec<Answer<B>>>> = Arc::default();
            let late = {
                let (store, taken) = (store.clone(), taken.clone());
                move || {
                    let (requests, answers) = B::batcher(&store).take();
                    *taken.lock().expect("nobody panics with the answers in hand") = answers;
                    B::of(&store, requests)
                }
            };
            let written = store.write_late(late).await;
            let mut answers = std::mem::take(&mut *taken.lock().expect("nobody panics with the answers in hand"));
            match written {
                Ok(replies) => {
                    B::committed(store, &replies);
                    for (answer, reply) in answers.into_iter().zip(replies) {
                        let _ = answer.send(Ok(reply));
                    }
                }
                Err(error) => {
                    // There was no transaction to take them into: whoever waits now hears why.
                    if answers.is_empty() {
                        answers = self.take().1;
                    }
                    for answer in answers {
                        let _ = answer.send(Err(error.share()));
                    }
                }
            }
        }
        std::mem::forget(place);
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
        self.shared::<EnqueueBatch>(request).await
    }

    pub(crate) async fn shared_settle(&self, request: SettleRequest) -> Result<SettleReply, StoreError> {
        self.shared::<SettleBatch>(request).await
    }

    async fn shared<B: Batch>(&self, request: B::Request) -> Result<B::Reply, StoreError> {
        let (start, answer) = B::batcher(self).submit(request);
        if start {
            let store = self.clone();
            self.batchers().tracker.spawn(async move { B::batcher(&store).run(&store).await });
        }
        answer.await.map_err(|_| StoreError::unexpected("a request was dropped"))?
    }
}
