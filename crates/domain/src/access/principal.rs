//! The rights of a principal at a later time than its request, such as when a trigger that it created fires: the union
//! of the active tokens with its name.

use crate::access::rights::{Access, Right};
use crate::name::Name;
use crate::triggers::trigger::Source;

/// The rights that all active tokens of one name grant together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrincipalRights(Vec<Access>);

/// Where the work that a trigger starts takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EffectTarget<'a> {
    /// A job in this queue.
    Queue(&'a Name),
    /// An HTTP request or a script: the event leaves the program.
    Outside,
    /// An operation on a runtime.
    Runtime,
}

impl PrincipalRights {
    pub fn of(tokens: Vec<Access>) -> Self {
        Self(tokens)
    }

    /// All rights: no tokens exist, or the local administrator makes the request.
    pub fn full() -> Self {
        Self(vec![Access::full()])
    }

    /// True if the principal has the right for the whole tenant.
    pub fn has(&self, right: Right) -> bool {
        self.0.iter().any(|access| access.queues.is_none() && access.has(right))
    }

    pub fn may_enqueue(&self, queue: &Name) -> bool {
        self.0.iter().any(|access| access.has(Right::Enqueue) && access.reaches(queue))
    }

    /// Returns the right that a trigger run lacks, if any. Its principal must still have the right to manage triggers,
    /// and data that leaves the program must be readable for the principal.
    pub fn missing_right(&self, source: Source, target: EffectTarget<'_>) -> Option<Right> {
        if !self.has(Right::ManageTriggers) {
            return Some(Right::ManageTriggers);
        }
        match target {
            EffectTarget::Queue(queue) => (!self.may_enqueue(queue)).then_some(Right::Enqueue),
            EffectTarget::Runtime => (!self.has(Right::ManageRuntimes)).then_some(Right::ManageRuntimes),
            EffectTarget::Outside => self.missing_right_to_read(source),
        }
    }

    /// Returns the right that the principal lacks to read the data in events of a source, if any.
    pub fn missing_right_to_read(&self, source: Source) -> Option<Right> {
        rights_to_read(source).iter().copied().find(|right| !self.has(*right))
    }
}

impl PrincipalRights {
    /// Returns the right that a queue trigger lacks to work on the jobs of a queue, if any: the rights of a worker that
    /// receives their payloads.
    pub fn missing_right_to_work(&self, queue: &Name) -> Option<Right> {
        let has = |right| self.0.iter().any(|access| access.has(right) && access.reaches(queue));
        [Right::Work, Right::ReadPayloads].into_iter().find(|right| !has(*right))
    }

    /// Returns the right that the principal lacks to have the state changes of a queue's jobs sent to a webhook, if any.
    /// The body is that of an event of the job, so the same rights are needed.
    pub fn missing_right_to_receive(&self, queue: &Name) -> Option<Right> {
        let has = |right: &&Right| self.0.iter().any(|access| access.has(**right) && access.reaches(queue));
        rights_to_read(Source::Job).iter().find(|right| !has(right)).copied()
    }
}

/// The rights needed to read the data in events of a source.
const fn rights_to_read(source: Source) -> &'static [Right] {
    match source {
        Source::Kv => &[Right::ReadPayloads],
        // Letters of deliveries contain results, and every letter contains its last error.
        Source::DeadLetter => &[Right::ReadPayloads, Right::ReadResults, Right::ReadLogs],
        Source::Job => &[Right::ReadResults, Right::ReadLogs],
        Source::Cron
        | Source::Pubsub
        | Source::Queue
        | Source::Http
        | Source::Email
        | Source::Runtime
        | Source::Run => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::rights::{Rights, Role};

    fn token(role: Role, granted: &[Right], queues: Option<&[&str]>) -> Access {
        let queues = queues.map(|queues| queues.iter().map(|queue| Name::stored(queue)).collect());
        Access { role, granted: Rights::of(granted), queues }
    }

    /// Requirement T2.
    #[test]
    fn a_trigger_run_has_exactly_the_rights_of_its_principals_active_tokens() {
        let queue = Name::stored("q");
        let lacks =
            |tokens: &[Access], source, reach| PrincipalRights::of(tokens.to_vec()).missing_right(source, reach);
        let into = EffectTarget::Queue(&queue);
        let triggers = token(Role::Operator, &[Right::ManageTriggers], None);
        assert_eq!(lacks(&[], Source::Kv, into), Some(Right::ManageTriggers), "it has no active token");
        assert_eq!(lacks(&[token(Role::Admin, &[], None)], Source::Job, EffectTarget::Outside), None);
        assert_eq!(lacks(&[token(Role::Operator, &[], None)], Source::Kv, into), Some(Right::ManageTriggers));
        assert_eq!(lacks(std::slice::from_ref(&triggers), Source::Kv, into), None);
        let viewer = token(Role::Viewer, &[Right::ManageTriggers], None);
        assert_eq!(lacks(std::slice::from_ref(&viewer), Source::Kv, into), Some(Right::Enqueue));
        // Two tokens with the same name are one principal.
        assert_eq!(lacks(&[viewer.clone(), token(Role::Producer, &[], Some(&["q"]))], Source::Kv, into), None);
        assert_eq!(
            lacks(&[viewer.clone(), token(Role::Producer, &[], Some(&["r"]))], Source::Kv, into),
            Some(Right::Enqueue)
        );
        assert_eq!(
            lacks(std::slice::from_ref(&triggers), Source::Kv, EffectTarget::Outside),
            Some(Right::ReadPayloads)
        );
        assert_eq!(
            lacks(std::slice::from_ref(&triggers), Source::Job, EffectTarget::Outside),
            Some(Right::ReadResults)
        );
        assert_eq!(lacks(std::slice::from_ref(&triggers), Source::Pubsub, EffectTarget::Outside), None);
        assert_eq!(
            lacks(std::slice::from_ref(&triggers), Source::Cron, EffectTarget::Runtime),
            Some(Right::ManageRuntimes)
        );
        assert_eq!(lacks(&[token(Role::Admin, &[], None)], Source::Cron, EffectTarget::Runtime), None);
        // A token that is restricted to queues has no right for the whole tenant.
        let narrowed = token(Role::Admin, &[], Some(&["q"]));
        assert_eq!(lacks(&[narrowed], Source::Kv, into), Some(Right::ManageTriggers));
        let works = |tokens: &[Access]| PrincipalRights::of(tokens.to_vec()).missing_right_to_work(&queue);
        assert_eq!(works(std::slice::from_ref(&triggers)), Some(Right::Work));
        assert_eq!(works(&[triggers.clone(), token(Role::Worker, &[], Some(&["r"]))]), Some(Right::Work));
        assert_eq!(works(&[triggers, token(Role::Worker, &[], None)]), Some(Right::ReadPayloads));
        assert_eq!(works(&[token(Role::Admin, &[], None)]), None);
    }

    /// Requirement X7.
    #[test]
    fn a_webhook_requires_the_rights_to_read_results_and_errors_of_its_queue() {
        let lacks = |granted: &[Right], queues: Option<&[&str]>| {
            let token = token(Role::Operator, granted, queues);
            PrincipalRights::of(vec![token]).missing_right_to_receive(&Name::stored("q"))
        };
        assert_eq!(lacks(&[], None), Some(Right::ReadResults));
        assert_eq!(lacks(&[Right::ReadResults], None), Some(Right::ReadLogs));
        assert_eq!(lacks(&[Right::ReadLogs, Right::ReadPayloads], None), Some(Right::ReadResults));
        assert_eq!(lacks(&[Right::ReadResults, Right::ReadLogs], None), None);
        assert_eq!(lacks(&[Right::ReadResults, Right::ReadLogs], Some(&["q"])), None);
        assert_eq!(lacks(&[Right::ReadResults, Right::ReadLogs], Some(&["r"])), Some(Right::ReadResults));
        assert_eq!(PrincipalRights::full().missing_right_to_receive(&Name::stored("q")), None);
    }
}
