//! Typed ids. A `JobId` cannot be passed where a `WorkerId` is expected.

use std::fmt;
use std::marker::PhantomData;

use uuid::Uuid;

/// A UUIDv7 of one kind of object.
pub struct Id<Of>(Uuid, PhantomData<fn() -> Of>);

pub enum OfJob {}
pub enum OfWorker {}
pub enum OfClaim {}
pub enum OfNode {}
pub enum OfTrigger {}
pub enum OfEvent {}
pub enum OfDeadLetter {}
pub enum OfToken {}
pub enum OfDelivery {}

pub type JobId = Id<OfJob>;
/// Each start of a worker gets a new id. A worker that kept its id across a restart would hide the claims that it
/// orphaned.
pub type WorkerId = Id<OfWorker>;
/// One `claim` request. All jobs that it returned share the id.
pub type ClaimId = Id<OfClaim>;
pub type NodeId = Id<OfNode>;
pub type TriggerId = Id<OfTrigger>;
/// The work that a trigger starts for an event is identified by (trigger, event).
pub type EventId = Id<OfEvent>;
pub type DeadLetterId = Id<OfDeadLetter>;
pub type TokenId = Id<OfToken>;
/// Sent to the receiver as well: all attempts of a delivery have the same id.
pub type DeliveryId = Id<OfDelivery>;

impl<Of> Id<Of> {
    pub const fn new(uuid: Uuid) -> Self {
        Self(uuid, PhantomData)
    }

    pub const fn uuid(self) -> Uuid {
        self.0
    }
}

impl<Of> Clone for Id<Of> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<Of> Copy for Id<Of> {}
impl<Of> PartialEq for Id<Of> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}
impl<Of> Eq for Id<Of> {}
impl<Of> PartialOrd for Id<Of> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<Of> Ord for Id<Of> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.cmp(&other.0)
    }
}
impl<Of> std::hash::Hash for Id<Of> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}
impl<Of> fmt::Debug for Id<Of> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
impl<Of> fmt::Display for Id<Of> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The owner of a row. An integer and not a UUID, because it is part of every row and most indexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub i64);

impl TenantId {
    /// The built-in tenant that administers the other tenants.
    pub const SYSTEM: TenantId = TenantId(1);
    /// The tenant of all work until a tenant is created.
    pub const DEFAULT: TenantId = TenantId(2);
}
