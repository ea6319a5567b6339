//! Natural batching: callers that arrive while a commit is under way share the next one.
//!
//! No timer and no added latency: an idle batcher runs a lone request at once. Sixteen producers with one job each cost
//! one commit. Tenants are taken in turn: one that floods waits for itself, and another's request is in the next commit.
//!
//! SQLite's writer takes commits from a queue, and the next is to be at hand when it is done with one: two are under way. On
//! PostgreSQL each is a round trip and the fewer the better: one is under way, and another beside it only where that one
//! is large and would hold the small up.

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

/// Commits of one kind under way at once, at most.
const UNDER_WAY: usize = 2;
/// A commit with more jobs than this is large.
const LARGE: usize = 500;
/// How often a runner steps back on PostgreSQL while most of those whom the last commit has answered are still to come again:
/// callers in this process do so at once.
const STEPS_BACK: usize = 2;

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

/// What a commit is made of.
struct Taken<B: Batch> {
    requests: Vec<B::Request>,
    answers: Vec<Answer<B>>,
    is_large: bool,
}

pub(crate) struct Batcher<B: Batch> {
    state: Mutex<State<B>>,
}

struct State<B: Batch> {
    /// Those with something waiting, in the order of their turns.
    turns: VecDeque<TenantId>,
    waiting: HashMap<TenantId, VecDeque<Waiting<B>>>,
    /// How many requests that is.
    asked: usize,
    /// How many the last commit had.
    before: usize,
    under_way: usize,
    /// How many of those are large.
    large: usize,
}

impl<B: Batch> Default for Batcher<B> {
    fn default() -> Self {
        let (turns, waiting) = (VecDeque::new(), HashMap::new());
        Self { state: Mutex::new(State { turns, waiting, asked: 0, before: 0, under_way: 0, large: 0 }) }
    }
}

impl<B: Batch> Batcher<B> {
    /// Whether the request needs a runner, and where its answer comes.
    fn submit(&self, request: B::Request, place: Where) -> (bool, oneshot::Receiver<Result<B::Reply, StoreError>>) {
        let (reply, answer) = oneshot::channel();
        let mut state = self.state.lock().expect("no batcher panics");
        let tenant = B::whose(&request);
        let waiting = state.waiting.entry(tenant).or_default();
        waiting.push_back((request, reply));
        if waiting.len() == 1 {
            state.turns.push_back(tenant);
        }
        state.asked += 1;
        let held_up = place == Where::Sqlite || state.under_way == state.large;
        let start = held_up && state.under_way < UNDER_WAY;
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

    /// Whether many of those whom the last commit has answered are still to come again.
    fn is_early(&self) -> bool {
        let state = self.state.lock().expect("no batcher panics");
        state.asked * 4 < state.before * 3
    }

    /// As many requests as fit one commit.
    fn take(&self) -> Taken<B> {
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
        state.asked -= requests.len();
        state.before = requests.len();
        let is_large = jobs > LARGE;
        state.large += usize::from(is_large);
        Taken { requests, answers, is_large }
    }

    async fn run(&self, store: &Store) {
        let mut place = Place { batcher: self, taken: Arc::default(), is_given_back: false };
        while !self.is_done() {
            for _ in 0..STEPS_BACK {
                if store.is_postgres() && self.is_early() {
                    tokio::task::yield_now().await;
                }
            }
            // Requests are taken when there is a transaction for them, not when it is asked for: who came meanwhile is in it.
            let late = {
                let (store, in_place) = (store.clone(), place.taken.clone());
                move || {
                    let Taken { requests, answers, is_large } = B::batcher(&store).take();
                    *in_place.lock().expect("nobody panics with the answers in hand") = (answers, is_large);
                    B::of(&store, requests)
                }
            };
            let written = store.write_late(late).await;
            let mut answers = place.committed();
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
                        let taken = self.take();
                        self.state.lock().expect("no batcher panics").large -= usize::from(taken.is_large);
                        answers = taken.answers;
                    }
                    for answer in answers {
                        let _ = answer.send(Err(error.share()));
                    }
                }
            }
        }
        place.is_given_back = true;
    }
}

/// A runner's place. A panic gives it back too: the callers hear an error and the next one gets a runner.
struct Place<'b, B: Batch> {
    batcher: &'b Batcher<B>,
    /// Who waits for the commit under way, and whether that is a large one.
    taken: Arc<Mutex<(Vec<Answer<B>>, bool)>>,
    /// By a runner that found nothing more to do.
    is_given_back: bool,
}

impl<B: Batch> Place<'_, B> {
    /// The commit is over; gives those who waited for it.
    fn committed(&self) -> Vec<Answer<B>> {
        let mut taken = self.taken.lock().expect("nobody panics with the answers in hand");
        let (answers, was_large) = std::mem::take(&mut *taken);
        self.batcher.state.lock().expect("no batcher panics").large -= usize::from(was_large);
        answers
    }
}

impl<B: Batch> Drop for Place<'_, B> {
    fn drop(&mut self) {
        if !self.is_given_back {
            drop(self.committed());
            self.batcher.state.lock().expect("no batcher panics").under_way -= 1;
        }
    }
}

/// Where a commit goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Where {
    Sqlite,
    Postgres,
}

impl Store {
    pub(crate) async fn shared_enqueue(&self, request: EnqueueRequest) -> Result<EnqueueReply, StoreError> {
        self.shared::<EnqueueBatch>(request).await
    }

    pub(crate) async fn shared_settle(&self, request: SettleRequest) -> Result<SettleReply, StoreError> {
        self.shared::<SettleBatch>(request).await
    }

    async fn shared<B: Batch>(&self, request: B::Request) -> Result<B::Reply, StoreError> {
        let place = if self.is_postgres() { Where::Postgres } else { Where::Sqlite };
        let (start, answer) = B::batcher(self).submit(request, place);
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
        batcher.take().requests.into_iter().map(|request| request.0).collect()
    }

    #[test]
    fn q12_a_tenant_that_floods_keeps_no_other_out_of_the_next_commit() {
        let batcher = Batcher::<Turns>::default();
        let answers: Vec<_> = (0..100).map(|_| batcher.submit(Asked(1, SHARED_COMMIT_JOBS), Where::Postgres)).collect();
        let small = [batcher.submit(Asked(2, 1), Where::Postgres), batcher.submit(Asked(3, 1), Where::Postgres)];
        assert_eq!(next(&batcher), [1], "what is full is full");
        assert_eq!(next(&batcher), [2, 3], "the others come before the flood goes on");
        assert_eq!(next(&batcher), [1]);
        drop((answers, small));
    }

    #[test]
    fn q12_small_requests_do_not_wait_for_a_large_commit() {
        let batcher = Batcher::<Turns>::default();
        let starts = |jobs: usize| batcher.submit(Asked(1, jobs), Where::Postgres).0;
        assert!(starts(LARGE), "the first has a runner at once");
        assert!(!starts(1), "what comes meanwhile is in the same commit");
        assert!(batcher.take().is_large);
        assert!(starts(1), "a large commit is under way: the next is not held up by it");
        assert!(!starts(1), "but by that, which is small");
        assert!(!batcher.take().is_large);
        assert!(!starts(LARGE + 1));
        assert!(batcher.take().is_large);
        assert!(!starts(1), "there are never more than two");
    }

    #[test]
    fn a_runner_waits_for_most_of_those_whom_the_last_commit_answered() {
        let batcher = Batcher::<Turns>::default();
        let mut answers = Vec::new();
        let mut come = |count: usize| answers.extend((0..count).map(|_| batcher.submit(Asked(1, 1), Where::Postgres)));
        come(1);
        assert!(!batcher.is_early(), "nobody was answered yet");
        come(7);
        batcher.take();
        come(5);
        assert!(batcher.is_early());
        come(1);
        assert!(!batcher.is_early(), "six of eight are enough");
    }

    #[test]
    fn q12_one_tenant_is_served_in_the_order_of_its_requests() {
        let batcher = Batcher::<Turns>::default();
        let answers: Vec<_> = (0..5).map(|number| batcher.submit(Asked(1, number), Where::Postgres)).collect();
        let taken: Vec<usize> = batcher.take().requests.into_iter().map(|request| request.1).collect();
        assert_eq!(taken, [0, 1, 2, 3, 4]);
        assert!(next(&batcher).is_empty());
        drop(answers);
    }
}
