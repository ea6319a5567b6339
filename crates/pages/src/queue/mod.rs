//! Pages for jobs, kinds, queues and workers.

pub mod activity;
pub mod job;
pub mod jobs;
pub mod kind;
pub mod push;
#[expect(clippy::module_inception, reason = "the page of one queue, beside those of one job and one worker")]
pub mod queue;
pub mod queues;
pub mod worker;
pub mod workers;

/// Queues of Windlass itself, such as those of operations on containers. Users cannot create such names.
const SYSTEM_QUEUES: &str = "windlass.";

/// True for the queue of Windlass itself.
pub fn is_system(queue: &str) -> bool {
    queue.starts_with(SYSTEM_QUEUES)
}
