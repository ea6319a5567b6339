//! Trigger execution: schedules, the outbox dispatcher, scripts, queue triggers and webhook deliveries.

pub(crate) mod deliver;
pub(crate) mod dispatch_outbox;
pub(crate) mod fire_schedules;
pub mod plan;
pub mod scripting;
pub(crate) mod work_queues;
