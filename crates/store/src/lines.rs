//! Of many who wait for the same and are told at once, a few look.
//!
//! A hint wakes everybody who waits for a queue. Whoever looks then and finds nothing speaks for all who take the same and
//! were told before that look began: a thousand workers that wait do not make a thousand claims of each job.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use domain::limits::{LOOKS_AT_ONCE, LOOKS_MORE};
use domain::{Label, Name, TenantId};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::tokens::Serves;

/// What a worker takes. Two that take the same find the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Takes {
    pub queues: Vec<Name>,
    /// All, when `None`.
    pub kinds: Option<Vec<Name>>,
    /// All, when `None`.
    pub affinities: Option<Vec<Label>>,
}

type Shape = (TenantId, Option<Serves>, Takes);

/// The lines of those who wait, on this node.
#[derive(Clone, Default)]
pub struct Lines(Arc<Mutex<HashMap<Shape, Members>>>);

struct Members {
    line: Arc<Line>,
    count: usize,
}

struct Line {
    /// Looks that have begun; each has the number that this had then.
    begun: AtomicU64,
    /// The last of them that found nothing.
    in_vain: AtomicU64,
    /// For so many at once; more while there is something to find.
    places: Semaphore,
    more: AtomicUsize,
}

impl Line {
    fn new() -> Self {
        let places = Semaphore::new(LOOKS_AT_ONCE);
        Self { begun: AtomicU64::new(0), in_vain: AtomicU64::new(0), places, more: AtomicUsize::new(0) }
    }

    fn grow(&self) {
        let grown = |more: usize| (more < LOOKS_MORE).then_some(more + 1);
        if self.more.fetch_update(Ordering::SeqCst, Ordering::SeqCst, grown).is_ok() {
            self.places.add_permits(1);
        }
    }

    /// Takes a place away with who had it, down to as many as there were.
    fn shrink(&self, place: SemaphorePermit<'_>) {
        let shrunk = |more: usize| more.checked_sub(1);
        if self.more.fetch_update(Ordering::SeqCst, Ordering::SeqCst, shrunk).is_ok() {
            place.forget();
        }
    }
}

impl Lines {
    /// Joins those of the tenant that take the same.
    pub fn join(&self, tenant: TenantId, serves: Option<Serves>, takes: Takes) -> InLine {
        let shape = (tenant, serves, takes);
        let mut lines = self.0.lock().expect("nobody panics with it in hand");
        let new = || Members { line: Arc::new(Line::new()), count: 0 };
        let members = lines.entry(shape.clone()).or_insert_with(new);
        members.count += 1;
        InLine { lines: self.clone(), shape, line: members.line.clone() }
    }
}

/// One who waits, with others.
pub struct InLine {
    lines: Lines,
    shape: Shape,
    line: Arc<Line>,
}

impl InLine {
    /// For one who was told just now: its turn to look, unless somebody who began to look since then finds nothing.
    pub async fn turn(&self) -> Option<Look<'_>> {
        let told = self.line.begun.load(Ordering::SeqCst);
        let place = self.line.places.acquire().await.ok()?;
        if self.line.in_vain.load(Ordering::SeqCst) > told {
            self.line.shrink(place);
            return None;
        }
        let number = self.line.begun.fetch_add(1, Ordering::SeqCst) + 1;
        Some(Look { line: &self.line, number, place })
    }
}

impl Drop for InLine {
    fn drop(&mut self) {
        let mut lines = self.lines.0.lock().expect("nobody panics with it in hand");
        let Some(members) = lines.get_mut(&self.shape) else { return };
        members.count -= 1;
        if members.count == 0 {
            lines.remove(&self.shape);
        }
    }
}

/// A look that has begun. Dropped without a word, it speaks for nobody.
pub struct Look<'l> {
    line: &'l Line,
    number: u64,
    place: SemaphorePermit<'l>,
}

impl Look<'_> {
    /// There was nothing, for anybody.
    pub fn was_in_vain(self) {
        self.line.in_vain.fetch_max(self.number, Ordering::SeqCst);
        self.line.shrink(self.place);
    }

    /// Where there was something there may be more: two come after this one.
    pub fn found_something(self) {
        self.line.grow();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use proptest::prelude::*;
    use tokio::task::{LocalSet, yield_now};

    use super::*;
    use crate::hints::{Hints, Topic};

    fn takes(queue: &str) -> Takes {
        Takes { queues: vec![Name::new(queue).expect("a name")], kinds: None, affinities: None }
    }

    fn ready() -> Topic {
        Topic::Ready(TenantId::DEFAULT, Name::new("q").expect("a name"))
    }

    /// A queue, and those who wait for it with a look that takes as many turns of the runtime as it is told to.
    #[derive(Default)]
    struct World {
        hints: Hints,
        lines: Lines,
        jobs: Cell<usize>,
        done: Cell<usize>,
        looked: Cell<usize>,
        looking: Cell<usize>,
        most: Cell<usize>,
    }

    impl World {
        async fn wait_and_take(self: Rc<Self>, pause: usize) {
            let listener = self.hints.listen([ready()]);
            let line = self.lines.join(TenantId::DEFAULT, None, takes("q"));
            loop {
                listener.hint().await;
                let Some(look) = line.turn().await else { continue };
                self.looked.set(self.looked.get() + 1);
                self.looking.set(self.looking.get() + 1);
                self.most.set(self.most.get().max(self.looking.get()));
                // What is there when it begins is taken; that it was is known later.
                let found = self.jobs.get() > 0;
                self.jobs.set(self.jobs.get() - usize::from(found));
                for _ in 0..pause {
                    yield_now().await;
                }
                self.looking.set(self.looking.get() - 1);
                if found {
                    self.done.set(self.done.get() + 1);
                    return look.found_something();
                }
                look.was_in_vain();
            }
        }

        fn add(&self, jobs: usize) {
            self.jobs.set(self.jobs.get() + jobs);
            self.hints.wake(&ready());
        }
    }

    /// Until all that can happen without another hint has happened.
    async fn settle() {
        for _ in 0..2_000 {
            yield_now().await;
        }
    }

    async fn with_waiting(pauses: &[usize], then: impl AsyncFnOnce(&World)) {
        let world = Rc::new(World::default());
        LocalSet::new()
            .run_until(async {
                for pause in pauses {
                    tokio::task::spawn_local(world.clone().wait_and_take(*pause));
                }
                settle().await;
                then(&world).await;
            })
            .await;
    }

    #[tokio::test]
    async fn q6_one_job_makes_a_few_of_many_look() {
        with_waiting(&[1; 500], async |world| {
            world.add(1);
            settle().await;
            assert_eq!(world.done.get(), 1);
            assert!(world.looked.get() <= 2 * LOOKS_AT_ONCE + 1, "{} looked", world.looked.get());
        })
        .await;
    }

    #[tokio::test]
    async fn q6_where_there_is_something_more_look_at_once_and_afterwards_few_again() {
        with_waiting(&[3; 900], async |world| {
            world.add(400);
            settle().await;
            assert_eq!(world.done.get(), 400);
            assert_eq!(world.most.take(), LOOKS_AT_ONCE + LOOKS_MORE);
            world.looked.take();
            world.add(1);
            settle().await;
            assert_eq!(
                (world.done.get(), world.most.get()),
                (401, LOOKS_AT_ONCE + 1),
                "the one that found it made room"
            );
            assert!(world.looked.get() <= 2 * LOOKS_AT_ONCE + 1, "{} looked", world.looked.get());
        })
        .await;
    }

    #[test]
    fn a_line_goes_with_the_last_in_it() {
        let lines = Lines::default();
        let of = |queue| lines.join(TenantId::DEFAULT, None, takes(queue));
        let (first, second, other) = (of("q"), of("q"), of("other"));
        assert!(Arc::ptr_eq(&first.line, &second.line) && !Arc::ptr_eq(&first.line, &other.line));
        drop((first, other));
        assert_eq!(lines.0.lock().expect("it is there").len(), 1);
        drop(second);
        assert!(lines.0.lock().expect("it is there").is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Nobody polls here: what a hint told of and is not taken would wait for ever.
        #[test]
        fn q6_what_was_told_is_taken_by_somebody(
            pauses in prop::collection::vec(0_usize..5, 1..40),
            adds in prop::collection::vec((1_usize..6, 0_usize..12), 1..12),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            runtime.block_on(with_waiting(&pauses, async |world| {
                for (jobs, pause) in &adds {
                    world.add(*jobs);
                    for _ in 0..*pause {
                        yield_now().await;
                    }
                }
                settle().await;
                let added: usize = adds.iter().map(|(jobs, _)| jobs).sum();
                assert_eq!(world.done.get(), added.min(pauses.len()), "of {added} for {}", pauses.len());
            }));
        }
    }
}
