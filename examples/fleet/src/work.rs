//! The worker, with one handler per process. Handlers report facts, which are set together with the job's success.

use client::{Client, HandlerError, JobContext, Worker, WorkerBuildError};

use crate::machines::{Flaw, Fleet, Machine};
use crate::processes::{INSTALL, QUEUE, RECOVER, START_AGENT};

pub fn worker(client: Client, fleet: &Fleet) -> Result<Worker<Client>, WorkerBuildError> {
    let (start, recover, install) = (fleet.clone(), fleet.clone(), fleet.clone());
    Worker::builder(client)
        .queue(QUEUE)
        .concurrency(8)
        .handle(START_AGENT, move |job| start_agent(start.clone(), job))
        .handle(RECOVER, move |job| power_cycle(recover.clone(), job))
        .handle(INSTALL, move |job| install_machine(install.clone(), job))
        .build()
}

fn machine<'f>(fleet: &'f Fleet, job: &JobContext) -> Result<&'f Machine, HandlerError> {
    let id = job.subject().unwrap_or_default();
    fleet.machine(id).ok_or_else(|| HandlerError::permanent("no_such_machine", format!("{id} is not in this fleet")))
}

async fn start_agent(fleet: Fleet, job: JobContext) -> Result<(), HandlerError> {
    if !machine(&fleet, &job)?.power_cycle() {
        return Err(HandlerError::retryable("no_power", "the management controller does not answer"));
    }
    // Set in the same commit as the success: from then on the machine is no longer eligible.
    job.fact("state", &"started")
}

async fn power_cycle(fleet: Fleet, job: JobContext) -> Result<(), HandlerError> {
    if !machine(&fleet, &job)?.power_cycle() {
        return Err(HandlerError::retryable("no_power", "the management controller does not answer"));
    }
    // Counts as a heartbeat. If the agent stays silent, the machine becomes eligible for recovery again.
    job.fact("heartbeat", &true)
}

async fn install_machine(fleet: Fleet, job: JobContext) -> Result<(), HandlerError> {
    job.phase("fetch");
    if machine(&fleet, &job)?.flaw == Flaw::DeadDisk {
        return Err(HandlerError::permanent("dead_disk", "the disk answers no command"));
    }
    job.phase("report");
    job.fact("state", &"installed")
}
