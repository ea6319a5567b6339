//! What a principal may do at a later moment than the one at which it asked: by the tokens of its name that are alive then
//! (T2).

use crate::access::{Access, Right};
use crate::name::Name;
use crate::trigger::Source;

/// What all living tokens of one name allow together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing(Vec<Access>);

/// Where what a trigger starts happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach<'a> {
    /// A job in this queue.
    Queue(&'a Name),
    /// It is told outside, or read by a script.
    Outside,
    /// An operation on a runtime.
    Runtime,
}

impl Standing {
    pub fn of(tokens: Vec<Access>) -> Self {
        Self(tokens)
    }

    /// Nobody has taken any right away: there are no tokens, or the machine's own operator asks.
    pub fn full() -> Self {
        Self(vec![Access::full()])
    }

    /// A right over the whole tenant.
    pub fn has(&self, right: Right) -> bool {
        self.0.iter().any(|access| access.queues.is_none() && access.has(right))
    }

    pub fn may_enqueue(&self, queue: &Name) -> bool {
        self.0.iter().any(|access| access.has(Right::Enqueue) && access.reaches(queue))
    }

    /// The right that a run lacks, if it lacks one. Whoever has a trigger run must still be allowed to have triggers; what
    /// leaves the program must be what the principal could read.
    pub fn lacks(&self, source: Source, reach: Reach<'_>) -> Option<Right> {
        if !self.has(Right::ManageTriggers) {
            return Some(Right::ManageTriggers);
        }
        match reach {
            Reach::Queue(queue) => (!self.may_enqueue(queue)).then_some(Right::Enqueue),
            Reach::Runtime => (!self.has(Right::ManageRuntimes)).then_some(Right::ManageRuntimes),
            Reach::Outside => told_by(source).iter().copied().find(|right| !self.has(*right)),
        }
    }
}

impl Standing {
    /// The right that a trigger lacks to work the jobs of a queue, if it lacks one: what a worker needs that is handed
    /// their payloads.
    pub fn lacks_to_work(&self, queue: &Name) -> Option<Right> {
        let has = |right| self.0.iter().any(|access| access.has(right) && access.reaches(queue));
        [Right::Work, Right::ReadPayloads].into_iter().find(|right| !has(*right))
    }
}

/// The rights to read what events of a source tell.
const fn told_by(source: Source) -> &'static [Right] {
    match source {
        Source::Kv | Source::DeadLetter => &[Right::ReadPayloads],
        Source::Job => &[Right::ReadResults, Right::ReadLogs],
        Source::Cron | Source::Pubsub | Source::Queue | Source::Http | Source::Email | Source::Runtime => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{Rights, Role};

    fn token(role: Role, granted: &[Right], queues: Option<&[&str]>) -> Access {
        let queues = queues.map(|queues| queues.iter().map(|queue| Name::stored(queue)).collect());
        Access { role, granted: Rights::of(granted), queues }
    }

    #[test]
    fn t2_a_run_has_the_rights_of_its_principals_living_tokens_and_no_more() {
        let queue = Name::stored("q");
        let lacks = |tokens: &[Access], source, reach| Standing::of(tokens.to_vec()).lacks(source, reach);
        let into = Reach::Queue(&queue);
        let triggers = token(Role::Operator, &[Right::ManageTriggers], None);
        assert_eq!(lacks(&[], Source::Kv, into), Some(Right::ManageTriggers), "all its tokens are gone");
        assert_eq!(lacks(&[token(Role::Admin, &[], None)], Source::Job, Reach::Outside), None);
        assert_eq!(lacks(&[token(Role::Operator, &[], None)], Source::Kv, into), Some(Right::ManageTriggers));
        assert_eq!(lacks(std::slice::from_ref(&triggers), Source::Kv, into), None);
        let viewer = token(Role::Viewer, &[Right::ManageTriggers], None);
        assert_eq!(lacks(std::slice::from_ref(&viewer), Source::Kv, into), Some(Right::Enqueue));
        // Two tokens of one name are one principal.
        assert_eq!(lacks(&[viewer.clone(), token(Role::Producer, &[], Some(&["q"]))], Source::Kv, into), None);
        assert_eq!(
            lacks(&[viewer.clone(), token(Role::Producer, &[], Some(&["r"]))], Source::Kv, into),
            Some(Right::Enqueue)
        );
        assert_eq!(lacks(std::slice::from_ref(&triggers), Source::Kv, Reach::Outside), Some(Right::ReadPayloads));
        assert_eq!(lacks(std::slice::from_ref(&triggers), Source::Job, Reach::Outside), Some(Right::ReadResults));
        assert_eq!(lacks(std::slice::from_ref(&triggers), Source::Pubsub, Reach::Outside), None);
        assert_eq!(lacks(std::slice::from_ref(&triggers), Source::Cron, Reach::Runtime), Some(Right::ManageRuntimes));
        assert_eq!(lacks(&[token(Role::Admin, &[], None)], Source::Cron, Reach::Runtime), None);
        // A token that is narrowed to queues has no right over the whole tenant.
        let narrowed = token(Role::Admin, &[], Some(&["q"]));
        assert_eq!(lacks(&[narrowed], Source::Kv, into), Some(Right::ManageTriggers));
        let works = |tokens: &[Access]| Standing::of(tokens.to_vec()).lacks_to_work(&queue);
        assert_eq!(works(std::slice::from_ref(&triggers)), Some(Right::Work));
        assert_eq!(works(&[triggers.clone(), token(Role::Worker, &[], Some(&["r"]))]), Some(Right::Work));
        assert_eq!(works(&[triggers, token(Role::Worker, &[], None)]), Some(Right::ReadPayloads));
        assert_eq!(works(&[token(Role::Admin, &[], None)]), None);
    }
}
