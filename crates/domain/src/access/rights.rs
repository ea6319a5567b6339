//! Roles, the rights that they include, and restrictions of tokens.
//!
//! This is the only table of roles. The rights that each route requires are listed in `server/src/access/rights.rs`.

use std::fmt;
use std::str::FromStr;

use crate::Name;

/// The purpose of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    Viewer,
    Producer,
    Worker,
    Operator,
    Admin,
}

/// One permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Right {
    /// Read queues, workers, subjects, processes, triggers, deliveries, runtimes and statistics.
    Read,
    /// Read the existence and state of jobs.
    ReadJobs,
    /// Read the jobs that the principal created, including their content.
    ReadOwnJobs,
    /// Create jobs, publish events and write keys.
    Enqueue,
    /// Register as a worker, claim, settle, signal and upload.
    Work,
    /// Pause, cancel, retry, lock out, drain, redeliver; change settings of queues, subjects and processes.
    Operate,
    ManageTriggers,
    /// Resolve and replay dead letters.
    ManageDeadLetters,
    ReadPayloads,
    ReadResults,
    ReadArtifacts,
    /// Read logs, and error messages beyond their code.
    ReadLogs,
    ManageRuntimes,
    ManageTokens,
}

/// A set of rights.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Rights(u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    #[error("must be one of admin, operator, producer, worker, viewer")]
    UnknownRole,
    #[error(
        "must be one of manage_triggers, manage_dead_letters, read_payloads, read_results, read_artifacts, read_logs"
    )]
    NotGrantable,
}

impl Role {
    pub const ALL: [Role; 5] = [Role::Admin, Role::Operator, Role::Producer, Role::Worker, Role::Viewer];

    pub const fn as_str(self) -> &'static str {
        match self {
            Role::Viewer => "viewer",
            Role::Producer => "producer",
            Role::Worker => "worker",
            Role::Operator => "operator",
            Role::Admin => "admin",
        }
    }

    /// The rights that the role includes.
    ///
    /// An operator sees that a job exists but not its content. It cannot claim, because a claim returns payloads. It
    /// does not own the jobs that it creates, because a retry would make it the owner of another principal's payload.
    pub fn rights(self) -> Rights {
        use Right::{Enqueue, Operate, Read, ReadJobs, ReadOwnJobs, Work};
        match self {
            Role::Viewer => Rights::of(&[Read, ReadJobs]),
            Role::Producer => Rights::of(&[Enqueue, ReadOwnJobs]),
            Role::Worker => Rights::of(&[Work]),
            Role::Operator => Rights::of(&[Read, ReadJobs, Enqueue, Operate]),
            Role::Admin => Rights::of(&Right::ALL),
        }
    }
}

impl FromStr for Role {
    type Err = AccessError;

    fn from_str(text: &str) -> Result<Self, AccessError> {
        Self::ALL.into_iter().find(|role| role.as_str() == text).ok_or(AccessError::UnknownRole)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Right {
    pub const ALL: [Right; 14] = [
        Right::Read,
        Right::ReadJobs,
        Right::ReadOwnJobs,
        Right::Enqueue,
        Right::Work,
        Right::Operate,
        Right::ManageTriggers,
        Right::ManageDeadLetters,
        Right::ReadPayloads,
        Right::ReadResults,
        Right::ReadArtifacts,
        Right::ReadLogs,
        Right::ManageRuntimes,
        Right::ManageTokens,
    ];

    /// Rights that can be granted individually, to a token of any role.
    pub const GRANTABLE: [Right; 6] = [
        Right::ManageTriggers,
        Right::ManageDeadLetters,
        Right::ReadPayloads,
        Right::ReadResults,
        Right::ReadArtifacts,
        Right::ReadLogs,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Right::Read => "read",
            Right::ReadJobs => "read_jobs",
            Right::ReadOwnJobs => "read_own_jobs",
            Right::Enqueue => "enqueue",
            Right::Work => "work",
            Right::Operate => "operate",
            Right::ManageTriggers => "manage_triggers",
            Right::ManageDeadLetters => "manage_dead_letters",
            Right::ReadPayloads => "read_payloads",
            Right::ReadResults => "read_results",
            Right::ReadArtifacts => "read_artifacts",
            Right::ReadLogs => "read_logs",
            Right::ManageRuntimes => "manage_runtimes",
            Right::ManageTokens => "manage_tokens",
        }
    }

    /// Parses the name of a right that can be granted individually.
    pub fn grantable(text: &str) -> Result<Self, AccessError> {
        Self::GRANTABLE.into_iter().find(|right| right.as_str() == text).ok_or(AccessError::NotGrantable)
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Rights {
    pub fn of(rights: &[Right]) -> Self {
        rights.iter().copied().collect()
    }

    pub fn has(self, right: Right) -> bool {
        self.0 & bit(right) != 0
    }

    pub fn and(self, more: Rights) -> Self {
        Self(self.0 | more.0)
    }

    pub fn is_within(self, other: Rights) -> bool {
        self.0 & !other.0 == 0
    }

    pub fn iter(self) -> impl Iterator<Item = Right> {
        Right::ALL.into_iter().filter(move |right| self.has(*right))
    }
}

fn bit(right: Right) -> u32 {
    1 << right as u32
}

impl FromIterator<Right> for Rights {
    fn from_iter<I: IntoIterator<Item = Right>>(rights: I) -> Self {
        Self(rights.into_iter().fold(0, |set, right| set | bit(right)))
    }
}

impl fmt::Debug for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(Right::as_str)).finish()
    }
}

/// The permissions of one token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    pub role: Role,
    /// Granted in addition to the role's rights.
    pub granted: Rights,
    /// The queues that the token is restricted to. `None`: all queues.
    pub queues: Option<Vec<Name>>,
}

impl Access {
    /// All rights on all queues of the tenant.
    pub const fn full() -> Self {
        Self { role: Role::Admin, granted: Rights(0), queues: None }
    }

    pub fn rights(&self) -> Rights {
        self.role.rights().and(self.granted)
    }

    pub fn has(&self, right: Right) -> bool {
        self.rights().has(right)
    }

    pub fn reaches(&self, queue: &Name) -> bool {
        self.queues.as_ref().is_none_or(|queues| queues.contains(queue))
    }

    /// True if a token with this access has no permission that `parent` lacks.
    pub fn is_within(&self, parent: &Access) -> bool {
        let narrow = match (&self.queues, &parent.queues) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(own), Some(all)) => own.iter().all(|queue| all.contains(queue)),
        };
        narrow && self.rights().is_within(parent.rights())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement T12.
    #[test]
    fn grantable_rights_belong_only_to_admins_and_explicit_grantees() {
        for role in Role::ALL {
            for right in Right::GRANTABLE {
                assert_eq!(role.rights().has(right), role == Role::Admin, "{role} {right}");
                let access = Access { role, granted: Rights::of(&[right]), queues: None };
                assert!(access.has(right), "{role} {right}");
            }
        }
        assert_eq!(Right::grantable("manage_tokens"), Err(AccessError::NotGrantable));
        assert_eq!(Right::grantable("read_logs"), Ok(Right::ReadLogs));
    }

    /// Requirement X7.
    #[test]
    fn only_an_admin_may_manage_tokens() {
        for role in Role::ALL {
            assert_eq!(role.rights().has(Right::ManageTokens), role == Role::Admin, "{role}");
        }
    }

    /// Requirement X7.
    #[test]
    fn a_child_token_has_no_access_beyond_its_parent() {
        let of = |role, queues: Option<&[&str]>| Access {
            role,
            granted: Rights::default(),
            queues: queues.map(|queues| queues.iter().map(|name| Name::stored(name)).collect()),
        };
        let admin = of(Role::Admin, None);
        assert!(Role::ALL.into_iter().all(|role| of(role, None).is_within(&admin)));
        assert!(!of(Role::Viewer, None).is_within(&of(Role::Admin, Some(&["a"]))));
        assert!(of(Role::Viewer, Some(&["a"])).is_within(&of(Role::Admin, Some(&["a", "b"]))));
        assert!(!of(Role::Viewer, Some(&["c"])).is_within(&of(Role::Admin, Some(&["a", "b"]))));
        assert!(!of(Role::Worker, None).is_within(&of(Role::Operator, None)));
        let granted = Access { granted: Rights::of(&[Right::ReadLogs]), ..of(Role::Operator, None) };
        assert!(!granted.is_within(&of(Role::Operator, None)));
        assert!(of(Role::Operator, None).is_within(&granted));
    }

    #[test]
    fn access_limited_to_queues_reaches_only_those_queues() {
        let access = Access { queues: Some(vec![Name::stored("mail")]), ..Access::full() };
        assert!(access.reaches(&Name::stored("mail")) && !access.reaches(&Name::stored("mails")));
        assert!(Access::full().reaches(&Name::stored("any")));
    }
}
