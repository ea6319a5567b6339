//! Trigger helpers of the HTTP and SMTP servers: CloudEvents, trigger depth, hook signatures, incoming mail and waiting
//! for runs.

pub(crate) mod cloudevent;
pub(crate) mod depth;
pub(crate) mod hook_signature;
pub mod smtp;
pub(crate) mod sync;
