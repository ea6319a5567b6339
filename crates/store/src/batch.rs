//! Natural batching: callers that arrive while a commit is under way share the next one.
//!
//! No timer and no added latency: an idle batcher runs a lone request at once. Sixteen producers with one job each cost
//! one commit. Tenants are taken in turn: one that floods waits for itself, and another's request is in the next commit.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use domain::TenantId;
use domain::limits::{SHARED_COMMIT_JOBS, SHARED_COMMIT_REQUESTS};
use tokio::sync::oneshot;

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
}

/// An operation made of many callers' requests, with one answer for each, in order.
pub(crate) trait Batch: Operation<Output = Vec<Self::Reply>> + Sized {
    type Request: Send + 'static;
    type Reply: Send + 'static;

    fn batcher(store: &Store) -> &Batcher<Self>;
    fn of(store: &Store, requests: Vec<Self::Request>) -> Self;
    fn jobs(request: &Self::Request) -> usize;
    fn whose(request: &Self::Request) -> TenantId;
    /// Runs once the commit holds.
    fn committed(store: &Store, replies: &[Self::Reply]);
}

/// A request, and where its answer goes.
type Waiting<B> = (<B as Batch>::Request, Answer<B>);
type Answer<B> = oneshot::Sender<Result<<B as Batch>::Reply, StoreError>>;

pub(crate) struct Batcher<B: Batch> {
    state: Mutex<State<B>>,
}

struct State<B: Batch> {
    /// Those with something waiting, in the order of their turns.
    turns: VecDeque<TenantId>,
    waiting: HashMap<TenantId, VecDeque<Waiting<B>>>,
    under_way: usize,
}

impl<B: Batch> Default for Batcher<B> {
    fn default() -> Self {
        Self { state: Mutex::new(State { turns: VecDeque::new(), waiting: HashMap::new(), under_way: 0 }) }
    }
}

impl<B: Batch> Batcher<B> {
    fn submit(&self, request: B::Request) -> (bool, oneshot::Receiver<Result<B::Reply, StoreError>>) {
        let (reply, answer) = oneshot::channel();
        let mut state = self.state.lock().expect("no batcher panics");
        let tenant = B::whose(&request);
        let waiting = state.waiting.entry(tenant).or_default();
        waiting.push_back((request, reply));
        if waiting.len() == 1 {
            state.turns.push_back(tenant);
        }
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
        while let Some(tenant) = state.turns.pop_front() {
            let waiting = state.waiting.get_mut(&tenant).expect("whoever has a turn waits");
            jobs += waiting.front().map_or(0, |(request, _)| B::jobs(request));
            if !requests.is_empty() && (jobs > SHARED_COMMIT_JOBS || requests.len() >= SHARED_COMMIT_REQUESTS) {
                // Its turn is the first of the next commit.
                state.turns.push_front(tenant);
                break;
            }
            let taken = waiting.pop_front();
            if waiting.is_empty() {
                state.waiting.remove(&tenant);
            } else {
                state.turns.push_back(tenant);
            }
            if let Some((request, answer)) = taken {
                requests.push(request);
                answers.push(answer);
            }
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
            self.carry_on(async move { B::batcher(&store).run(&store).await });
        }
        answer.await.map_err(|_| StoreError::unexpected("a request was dropped"))?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tx::Tx;

    /// A request of a tenant, with so many jobs.
    struct Turns;
    struct Asked(i64, usize);

    impl Operation for Turns {
        type Output = Vec<()>;

        async fn run(&self, _: &mut Tx<'_>) -> Result<Vec<()>, StoreError> {
            Ok(Vec::new())
        }
    }

    impl Batch for Turns {
        type Request = Asked;
        type Reply = ();

        fn batcher(_: &Store) -> &Batcher<Self> {
            unreachable!("the tests take turns by hand")
        }

        fn of(_: &Store, _: Vec<Asked>) -> Self {
            Self
        }

        fn jobs(request: &Asked) -> usize {
            request.1
        }

        fn whose(request: &Asked) -> TenantId {
            TenantId(request.0)
        }

        fn committed(_: &Store, _: &[()]) {}
    }

    fn next(batcher: &Batcher<Turns>) -> Vec<i64> {
        batcher.take().0.into_iter().map(|request| request.0).collect()
    }

    #[test]
    fn q12_a_tenant_that_floods_keeps_no_other_out_of_the_next_commit() {
        let batcher = Batcher::<Turns>::default();
        let answers: Vec<_> = (0..100).map(|_| batcher.submit(Asked(1, SHARED_COMMIT_JOBS))).collect();
        let small = [batcher.submit(Asked(2, 1)), batcher.submit(Asked(3, 1))];
        assert_eq!(next(&batcher), [1], "what is full is full");
        assert_eq!(next(&batcher), [2, 3], "the others come before the flood goes on");
        assert_eq!(next(&batcher), [1]);
        drop((answers, small));
    }

    #[test]
    fn q12_one_tenant_is_served_in_the_order_of_its_requests() {
        let batcher = Batcher::<Turns>::default();
        let answers: Vec<_> = (0..5).map(|number| batcher.submit(Asked(1, number))).collect();
        let taken: Vec<usize> = batcher.take().0.into_iter().map(|request| request.1).collect();
        assert_eq!(taken, [0, 1, 2, 3, 4]);
        assert!(next(&batcher).is_empty());
        drop(answers);
    }
}
