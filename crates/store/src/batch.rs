//! Natural batching: callers that arrive while a commit is under way share the next one.
//!
//! Nobody waits for a timer: an idle batcher runs a lone request at once. Sixteen producers with one job each cost
//! one commit. Tenants are taken in turn: one that floods waits for itself, and another's request is in the next commit.
//!
//! SQLite's writer takes commits from a queue, and the next is to be at hand when it is done with one: two are under way. On
//! PostgreSQL each is a round trip and the fewer the better: one is under way, and another beside it only where that one
//! takes long, be it because it is large or because it waits for a lock, and would hold up the rest.

use std::collections::{HashMap, VecDeque};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

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
/// A commit that has taken longer than this holds nobody up any more.
const LONG: Duration = Duration::from_millis(10);
/// How often a runner steps back on PostgreSQL while most of those whom the last commit has answered are still to come again:
/// callers in this process do so at once.
const STEPS_BACK: usize = 2;

pub(crate) struct Batchers {
    pub(crate) enqueue: Batcher<EnqueueBatch>,
    pub(crate) settle: Batcher<SettleBatch>,
}

impl Batchers {
    pub(crate) fn on_sqlite() -> Self {
        Self { enqueue: Batcher::of(UNDER_WAY), settle: Batcher::of(UNDER_WAY) }
    }

    pub(crate) fn on_postgres() -> Self {
        Self { enqueue: Batcher::of(1), settle: Batcher::of(1) }
    }
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
    /// How many commits may be under way that do not take long.
    abreast: usize,
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
    /// How many of those take long.
    long: usize,
}

impl<B: Batch> State<B> {
    /// Takes a place for another runner, if there is one to be had.
    fn start(&mut self, abreast: usize) -> bool {
        let start = self.under_way - self.long < abreast && self.under_way < UNDER_WAY;
        self.under_way += usize::from(start);
        start
    }
}

impl<B: Batch> Batcher<B> {
    fn of(abreast: usize) -> Self {
        let (turns, waiting) = (VecDeque::new(), HashMap::new());
        Self { abreast, state: Mutex::new(State { turns, waiting, asked: 0, before: 0, under_way: 0, long: 0 }) }
    }

    /// Whether the request needs a runner, and where its answer comes.
    fn submit(&self, request: B::Request) -> (bool, oneshot::Receiver<Result<B::Reply, StoreError>>) {
        let (reply, answer) = oneshot::channel();
        let mut state = self.state.lock().expect("no batcher panics");
        let tenant = B::whose(&request);
        let waiting = state.waiting.entry(tenant).or_default();
        waiting.push_back((request, reply));
        if waiting.len() == 1 {
            state.turns.push_back(tenant);
        }
        state.asked += 1;
        (state.start(self.abreast), answer)
    }

    /// Whether there is nothing to do, or others to do it. If so the runner's place is given back: in the same breath, so
    /// that a request that comes in now starts a runner of its own.
    fn is_done(&self) -> bool {
        let mut state = self.state.lock().expect("no batcher panics");
        let is_done = state.waiting.is_empty() || state.under_way - state.long > self.abreast;
        state.under_way -= usize::from(is_done);
        is_done
    }

    /// A commit takes long. Gives whether those who wait need another runner.
    fn is_long(&self) -> bool {
        let mut state = self.state.lock().expect("no batcher panics");
        state.long += 1;
        !state.waiting.is_empty() && state.start(self.abreast)
    }

    /// Whether many of those whom the last commit has answered are still to come again.
    fn is_early(&self) -> bool {
        let state = self.state.lock().expect("no batcher panics");
        self.abreast == 1 && state.asked * 4 < state.before * 3
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
        state.asked -= requests.len();
        state.before = requests.len();
        (requests, answers)
    }

    async fn run(&self, store: &Store) {
        let mut place = Place { batcher: self, is_long: false };
        while !self.is_done() {
            for _ in 0..STEPS_BACK {
                if self.is_early() {
                    tokio::task::yield_now().await;
                }
            }
            // Requests are taken when there is a transaction for them, not when it is asked for: who came meanwhile is in it.
            let taken: Arc<Mutex<Vec<Answer<B>>>> = Arc::default();
            let late = {
                let (store, taken) = (store.clone(), taken.clone());
                move || {
                    let (requests, answers) = B::batcher(&store).take();
                    *taken.lock().expect("nobody panics with the answers in hand") = answers;
                    B::of(&store, requests)
                }
            };
            let written = place.watch(store, store.write_late(late)).await;
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
    /// Whether the commit under way takes long.
    is_long: bool,
}

impl<B: Batch> Place<'_, B> {
    /// Waits for a commit, and sees to it that nobody else waits for it for long.
    async fn watch<T>(&mut self, store: &Store, commit: impl Future<Output = T>) -> T {
        let mut commit = pin!(commit);
        if let Ok(written) = tokio::time::timeout(LONG, commit.as_mut()).await {
            return written;
        }
        self.is_long = true;
        if self.batcher.is_long() {
            store.run_batches::<B>();
        }
        let written = commit.await;
        self.over();
        written
    }

    fn over(&mut self) {
        let was_long = std::mem::take(&mut self.is_long);
        self.batcher.state.lock().expect("no batcher panics").long -= usize::from(was_long);
    }
}

impl<B: Batch> Drop for Place<'_, B> {
    fn drop(&mut self) {
        self.over();
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
            self.run_batches::<B>();
        }
        answer.await.map_err(|_| StoreError::unexpected("a request was dropped"))?
    }

    /// For whoever has a place.
    fn run_batches<B: Batch>(&self) {
        let store = self.clone();
        self.carry_on(async move { B::batcher(&store).run(&store).await });
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
        let batcher = Batcher::<Turns>::of(1);
        let answers: Vec<_> = (0..100).map(|_| batcher.submit(Asked(1, SHARED_COMMIT_JOBS))).collect();
        let small = [batcher.submit(Asked(2, 1)), batcher.submit(Asked(3, 1))];
        assert_eq!(next(&batcher), [1], "what is full is full");
        assert_eq!(next(&batcher), [2, 3], "the others come before the flood goes on");
        assert_eq!(next(&batcher), [1]);
        drop((answers, small));
    }

    #[test]
    fn q12_nobody_waits_for_a_commit_that_takes_long() {
        let batcher = Batcher::<Turns>::of(1);
        let starts = |jobs: usize| batcher.submit(Asked(1, jobs)).0;
        assert!(starts(1), "the first has a runner at once");
        batcher.take();
        assert!(!starts(1), "what comes meanwhile is for the next commit");
        assert!(batcher.is_long(), "and no longer, once this one takes long");
        batcher.take();
        assert!(!starts(1), "the second does not take long yet");
        assert!(!batcher.is_long(), "there are never more than two");
        let mut place = Place { batcher: &batcher, is_long: true };
        place.over();
        assert!(!batcher.is_done(), "one goes on");
        place.is_long = true;
        place.over();
        assert!(batcher.is_done(), "and one is enough when neither takes long");
        std::mem::forget(place);
    }

    #[test]
    fn two_are_under_way_where_the_writer_has_a_queue() {
        let batcher = Batcher::<Turns>::of(UNDER_WAY);
        let starts: Vec<bool> = (0..3).map(|_| batcher.submit(Asked(1, 1)).0).collect();
        assert_eq!(starts, [true, true, false]);
    }

    #[test]
    fn a_runner_waits_for_most_of_those_whom_the_last_commit_answered() {
        let batcher = Batcher::<Turns>::of(1);
        let mut answers = Vec::new();
        let mut come = |count: usize| answers.extend((0..count).map(|_| batcher.submit(Asked(1, 1))));
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
        let batcher = Batcher::<Turns>::of(1);
        let answers: Vec<_> = (0..5).map(|number| batcher.submit(Asked(1, number))).collect();
        let taken: Vec<usize> = batcher.take().0.into_iter().map(|request| request.1).collect();
        assert_eq!(taken, [0, 1, 2, 3, 4]);
        assert!(next(&batcher).is_empty());
        drop(answers);
    }
}
