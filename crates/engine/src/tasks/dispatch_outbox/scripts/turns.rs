//! Whose script runs next on this node: tenants take turns, so that one whose scripts are slow waits for itself.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use domain::TenantId;
use domain::limits::{SCRIPTS_AT_ONCE, SCRIPTS_WAITING, SCRIPTS_WAITING_OF_TENANT};
use tokio::sync::oneshot;

#[derive(Clone, Default)]
pub(super) struct Turns {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// Of each tenant, how many run.
    running: HashMap<TenantId, usize>,
    /// Of each tenant, how many run or are to.
    taken: HashMap<TenantId, usize>,
    /// In the order in which they came.
    waiting: Vec<(TenantId, oneshot::Sender<Turn>)>,
}

/// Room for a script that runs or is to run, given back when it is dropped.
pub(super) struct Room {
    turns: Turns,
    tenant: TenantId,
}

/// A place to run on, given back when it is dropped.
pub(super) struct Turn {
    turns: Turns,
    tenant: TenantId,
}

impl Turns {
    /// Nothing when there is no room for another one of this tenant.
    pub(super) fn room(&self, tenant: TenantId) -> Option<Room> {
        let mut state = self.state();
        let all: usize = state.taken.values().sum();
        let own = state.taken.get(&tenant).copied().unwrap_or_default();
        if all >= SCRIPTS_WAITING || own >= SCRIPTS_WAITING_OF_TENANT {
            return None;
        }
        state.taken.insert(tenant, own + 1);
        Some(Room { turns: self.clone(), tenant })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Gives free places to those who wait: first to the tenant that has the fewest, then to who came first.
    fn give(&self) {
        loop {
            let mut state = self.state();
            state.waiting.retain(|(_, waits)| !waits.is_closed());
            if state.running.values().sum::<usize>() >= SCRIPTS_AT_ONCE {
                return;
            }
            let places = |tenant: &TenantId| state.running.get(tenant).copied().unwrap_or_default();
            let next = state.waiting.iter().enumerate().min_by_key(|(_, (tenant, _))| places(tenant));
            let Some(next) = next.map(|(place, _)| place) else { return };
            let (tenant, waits) = state.waiting.remove(next);
            *state.running.entry(tenant).or_default() += 1;
            drop(state);
            // One that has given up just now drops its turn, which is then another's.
            let _ = waits.send(Turn { turns: self.clone(), tenant });
        }
    }
}

impl Room {
    /// Waits for a place.
    pub(super) async fn turn(&self) -> Turn {
        let (sender, turn) = oneshot::channel();
        self.turns.state().waiting.push((self.tenant, sender));
        self.turns.give();
        turn.await.expect("who waits is in the list until it has its turn")
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        one_less(&mut self.turns.state().taken, self.tenant);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        one_less(&mut self.turns.state().running, self.tenant);
        self.turns.give();
    }
}

fn one_less(counts: &mut HashMap<TenantId, usize>, tenant: TenantId) {
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

    type Asked<'a> = Pin<Box<dyn Future<Output = Turn> + 'a>>;

    /// The turn, if its time has come.
    fn now(asked: &mut Asked<'_>) -> Option<Turn> {
        match asked.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(turn) => Some(turn),
            Poll::Pending => None,
        }
    }

    fn rooms(turns: &Turns, tenant: TenantId, count: usize) -> Vec<Room> {
        (0..count).map(|_| turns.room(tenant).expect("there is room")).collect()
    }

    #[test]
    fn q12_a_tenant_has_at_most_half_of_the_places_while_another_waits() {
        let turns = Turns::default();
        let (own, others) = (rooms(&turns, ONE, SCRIPTS_AT_ONCE + 1), rooms(&turns, OTHER, SCRIPTS_AT_ONCE));
        let mut asked: Vec<Asked<'_>> = own.iter().map(|room| Box::pin(room.turn()) as Asked<'_>).collect();
        let mut running: Vec<Turn> = asked.iter_mut().filter_map(now).collect();
        assert_eq!(running.len(), SCRIPTS_AT_ONCE, "all of them, while nobody else asks");
        let mut last = asked.pop().expect("one waits");
        let mut theirs: Vec<Asked<'_>> = others.iter().map(|room| Box::pin(room.turn()) as Asked<'_>).collect();
        assert!(theirs.iter_mut().all(|asked| now(asked).is_none()), "no place is free");
        let mut given = Vec::new();
        for _ in 0..SCRIPTS_AT_ONCE / 2 {
            running.pop();
            assert!(now(&mut last).is_none(), "it came first, and has more");
            given.push(now(&mut theirs.remove(0)).expect("the other's turn"));
        }
        running.pop();
        assert!(now(&mut theirs[0]).is_none());
        running.push(now(&mut last).expect("its turn again"));
        given.pop();
        assert!(now(&mut theirs[0]).is_some());
    }

    #[test]
    fn q12_a_turn_that_nobody_waits_for_any_more_is_anothers() {
        let turns = Turns::default();
        let rooms = rooms(&turns, ONE, SCRIPTS_AT_ONCE + 2);
        let mut asked: Vec<Asked<'_>> = rooms.iter().map(|room| Box::pin(room.turn()) as Asked<'_>).collect();
        let mut running: Vec<Turn> = asked.iter_mut().filter_map(now).collect();
        drop(asked.remove(SCRIPTS_AT_ONCE));
        running.pop();
        assert!(now(&mut asked[SCRIPTS_AT_ONCE]).is_some());
    }

    #[test]
    fn q12_a_tenant_takes_at_most_half_of_the_room() {
        let turns = Turns::default();
        let own: Vec<Room> = std::iter::from_fn(|| turns.room(ONE)).collect();
        assert_eq!(own.len(), SCRIPTS_WAITING_OF_TENANT);
        assert!(turns.room(OTHER).is_some());
        drop(own);
        assert!(turns.room(ONE).is_some());
    }
}
