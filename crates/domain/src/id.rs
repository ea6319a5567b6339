//! Typed ids. A `JobId` cannot be handed where a `WorkerId` is wanted.

use std::fmt;
use std::marker::PhantomData;

use uuid::Uuid;

/// A UUIDv7 that belongs to one kind of thing.
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
/// A fresh id per start of a worker: an identity that came back after a restart would hide orphaned claims.
pub type WorkerId = Id<OfWorker>;
/// One call of `claim`: the jobs it handed out share it.
pub type ClaimId = Id<OfClaim>;
pub type NodeId = Id<OfNode>;
pub type TriggerId = Id<OfTrigger>;
/// Something that happened. What a trigger starts because of it is known by (trigger, event).
pub type EventId = Id<OfEvent>;
pub type DeadLetterId = Id<OfDeadLetter>;
pub type TokenId = Id<OfToken>;
/// Also what its receiver knows it by: the same for every attempt.
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

/// Who a row belongs to. Small, because it is in every row and most indexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub i64);

impl TenantId {
    /// The built-in tenant that administers the others.
    pub const SYSTEM: TenantId = TenantId(1);
    /// Where work goes while nobody has made a tenant.
    pub const DEFAULT: TenantId = TenantId(2);
}
