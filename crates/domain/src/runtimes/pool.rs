//! Pools: many runtimes share a few slots. The backlog of an affinity determines which runtime is loaded.

use std::collections::BTreeSet;

use crate::limits::{
    HANDLER_TIMEOUT_MAX_S, POOL_MEMBERS, POOL_SLOT_MAX_JOBS, POOL_SLOTS, PROBE_PATH_BYTES, RUNTIME_MEMORY_MAX_MB,
    WAIT_MAX_S,
};
use crate::runtimes::{Placement, SpecError};
use crate::{Label, Name, RuntimeName};

#[derive(Clone, Debug, PartialEq)]
pub struct PoolSpec {
    /// Runtimes of the pool that may be up concurrently.
    pub slots: u32,
    /// Memory budget of all runtimes that can be up concurrently. `None`: unlimited.
    pub memory_mb: Option<i64>,
    pub members: Vec<Member>,
    /// The queue whose jobs the pool runs.
    pub queue: Name,
    /// How long other affinities may be passed over. `None`: the queue's setting.
    pub starvation_s: Option<i64>,
    /// A runtime that has been idle for this long is stopped. `None`: never.
    pub idle_stop_s: Option<i64>,
    pub handler: Handler,
    /// The nodes that may run the pool.
    pub placement: Placement,
}

/// The runtime that runs the jobs of an affinity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub affinity: Label,
    pub runtime: RuntimeName,
    pub stay: Stay,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stay {
    /// Loaded when it is needed, unloaded when another is.
    AsNeeded,
    /// Like `AsNeeded`, but loaded at the start.
    Preloaded,
    /// Has a slot of its own and is never unloaded.
    Pinned,
}

/// How a runtime receives a job: an HTTP POST of its payload. The response is the result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handler {
    pub path: String,
    pub timeout_s: i64,
    /// Jobs that one slot runs concurrently.
    pub at_once: u32,
}

impl Stay {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AsNeeded => "as_needed",
            Self::Preloaded => "preloaded",
            Self::Pinned => "pinned",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::AsNeeded, Self::Preloaded, Self::Pinned].into_iter().find(|stay| stay.as_str() == text)
    }
}

/// A slot: the members it serves, and the one it loads first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    pub members: Vec<Member>,
    pub first: Option<Member>,
    /// Its runtime is never unloaded.
    pub pinned: bool,
}

fn refuse(field: impl Into<String>, reason: impl Into<String>) -> SpecError {
    SpecError { field: field.into(), reason: reason.into() }
}

impl PoolSpec {
    pub fn check(&self) -> Result<(), SpecError> {
        if !(1..=POOL_SLOTS).contains(&self.slots) {
            return Err(refuse("slots", format!("must be from 1 to {POOL_SLOTS}")));
        }
        if self.members.is_empty() || self.members.len() > POOL_MEMBERS {
            return Err(refuse("members", format!("must have 1 to {POOL_MEMBERS} members")));
        }
        let (mut affinities, mut runtimes) = (BTreeSet::new(), BTreeSet::new());
        for (number, member) in self.members.iter().enumerate() {
            if !affinities.insert(&member.affinity) {
                return Err(refuse(format!("members[{number}].affinity"), "is a duplicate"));
            }
            if !runtimes.insert(&member.runtime) {
                return Err(refuse(format!("members[{number}].runtime"), "is a duplicate"));
            }
        }
        let pinned = self.pinned().count();
        let capacity = self.slots as usize;
        if pinned > capacity || (pinned == capacity && pinned < self.members.len()) {
            return Err(refuse("slots", "must exceed the number of pinned members, or the other members never run"));
        }
        if self.memory_mb.is_some_and(|memory_mb| !(1..=RUNTIME_MEMORY_MAX_MB).contains(&memory_mb)) {
            return Err(refuse("memory_mb", format!("must be from 1 to {RUNTIME_MEMORY_MAX_MB}")));
        }
        for (field, value) in [("starvation_s", self.starvation_s), ("idle_stop_s", self.idle_stop_s)] {
            if value.is_some_and(|value| !(1..=WAIT_MAX_S).contains(&value)) {
                return Err(refuse(field, format!("must be from 1 to {WAIT_MAX_S}")));
            }
        }
        self.placement.check()?;
        let Handler { path, timeout_s, at_once } = &self.handler;
        if !path.starts_with('/') || !path.bytes().all(|b| b.is_ascii_graphic()) || path.len() > PROBE_PATH_BYTES {
            return Err(refuse("handler.path", "must begin with / and contain only visible ASCII without spaces"));
        }
        if !(1..=HANDLER_TIMEOUT_MAX_S).contains(timeout_s) {
            return Err(refuse("handler.timeout_s", format!("must be from 1 to {HANDLER_TIMEOUT_MAX_S}")));
        }
        if !(1..=POOL_SLOT_MAX_JOBS).contains(at_once) {
            return Err(refuse("handler.at_once", format!("must be from 1 to {POOL_SLOT_MAX_JOBS}")));
        }
        Ok(())
    }

    /// Refuses a memory budget that the slots can exceed. `memory_mb` is the limit of each member's runtime.
    pub fn fits(&self, memory_mb: &[Option<i64>]) -> Result<(), SpecError> {
        let Some(budget) = self.memory_mb else { return Ok(()) };
        if let Some(number) = memory_mb.iter().position(Option::is_none) {
            let reason = "must set memory_mb, because the pool has a memory budget";
            return Err(refuse(format!("members[{number}].runtime"), reason));
        }
        let sizes = |pinned: bool| {
            let members = self.members.iter().zip(memory_mb);
            members.filter(move |(member, _)| (member.stay == Stay::Pinned) == pinned).filter_map(|(_, size)| *size)
        };
        let mut others: Vec<i64> = sizes(false).collect();
        others.sort_unstable_by(|a, b| b.cmp(a));
        let unpinned_slots = (self.slots as usize).saturating_sub(self.pinned().count());
        let most = sizes(true).sum::<i64>() + others.iter().take(unpinned_slots).sum::<i64>();
        if most > budget {
            let reason = format!("must be at least {most}: the sum for {} slots that are up concurrently", self.slots);
            return Err(refuse("memory_mb", reason));
        }
        Ok(())
    }

    fn pinned(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.stay == Stay::Pinned)
    }

    /// Each pinned member gets a slot of its own. The other members share the remaining slots.
    pub fn slots(&self) -> Vec<Slot> {
        let of_its_own =
            |member: &Member| Slot { members: vec![member.clone()], first: Some(member.clone()), pinned: true };
        let mut slots: Vec<Slot> = self.pinned().map(of_its_own).collect();
        let others: Vec<Member> = self.members.iter().filter(|member| member.stay != Stay::Pinned).cloned().collect();
        let mut preloaded = others.iter().filter(|member| member.stay == Stay::Preloaded).cloned();
        while slots.len() < self.slots as usize && !others.is_empty() {
            let first = preloaded.next();
            slots.push(Slot { members: others.clone(), first, pinned: false });
        }
        slots
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(slots: u32, stays: &[Stay]) -> PoolSpec {
        let member = |(number, stay): (usize, &Stay)| Member {
            affinity: Label::stored(&format!("m{number}")),
            runtime: RuntimeName::stored(&format!("r{number}")),
            stay: *stay,
        };
        PoolSpec {
            slots,
            memory_mb: None,
            members: stays.iter().enumerate().map(member).collect(),
            queue: Name::stored("q"),
            starvation_s: None,
            idle_stop_s: None,
            handler: Handler { path: "/".into(), timeout_s: 60, at_once: 1 },
            placement: Placement::default(),
        }
    }

    /// Requirement R7.
    #[test]
    fn a_memory_budget_holds_for_every_combination_of_members() {
        use Stay::{AsNeeded, Pinned};
        let check = |slots, budget, stays: &[Stay], sizes: &[Option<i64>]| {
            let pool = PoolSpec { memory_mb: Some(budget), ..pool(slots, stays) };
            pool.fits(sizes).map_err(|error| error.field)
        };
        assert_eq!(check(1, 16, &[AsNeeded, AsNeeded], &[Some(8), Some(16)]), Ok(()));
        assert_eq!(check(2, 23, &[AsNeeded, AsNeeded], &[Some(8), Some(16)]), Err("memory_mb".into()));
        assert_eq!(check(2, 24, &[Pinned, AsNeeded, AsNeeded], &[Some(8), Some(4), Some(16)]), Ok(()));
        assert_eq!(check(2, 23, &[Pinned, AsNeeded, AsNeeded], &[Some(8), Some(4), Some(16)]), Err("memory_mb".into()));
        assert_eq!(check(1, 16, &[AsNeeded, AsNeeded], &[Some(8), None]), Err("members[1].runtime".into()));
        assert_eq!(pool(2, &[AsNeeded]).fits(&[None]), Ok(()));
    }

    /// Requirement R7.
    #[test]
    fn pinned_members_leave_a_slot_for_the_others() {
        use Stay::{AsNeeded, Pinned, Preloaded};
        assert!(pool(1, &[AsNeeded, AsNeeded]).check().is_ok());
        assert!(pool(1, &[Pinned]).check().is_ok());
        assert_eq!(pool(1, &[Pinned, AsNeeded]).check().map_err(|error| error.field), Err("slots".into()));
        assert_eq!(pool(0, &[Pinned]).check().map_err(|error| error.field), Err("slots".into()));
        let slots = pool(3, &[AsNeeded, Pinned, Preloaded]).slots();
        assert_eq!(slots.iter().map(|slot| slot.members.len()).collect::<Vec<_>>(), [1, 2, 2]);
        let first = |slot: &Slot| slot.first.as_ref().map(|member| member.runtime.to_string());
        assert_eq!(slots.iter().map(first).collect::<Vec<_>>(), [Some("r1".into()), Some("r2".into()), None]);
    }
}
