//! `windlass worker`: lists, drains and removes workers.

use clap::Subcommand;
use client::Client;
use serde_json::json;
use uuid::Uuid;
use wire::WorkerView;

use crate::cli::exit;
use crate::cli::exit::Exit;
use crate::cli::id_argument::IdArgument;
use crate::cli::list;
use crate::cli::output;
use crate::cli::output::{Output, cell, relative, relative_maybe};

#[derive(Subcommand)]
pub(crate) enum WorkerVerb {
    /// List workers
    List,
    /// Let workers finish their jobs and claim no more
    Drain {
        #[arg(required = true)]
        id: Vec<IdArgument>,
    },
    /// Remove workers; their jobs return to the queues without using up an attempt
    Remove {
        #[arg(required = true)]
        id: Vec<IdArgument>,
    },
}

pub(crate) async fn run(client: &Client, verb: WorkerVerb, format: Output) -> anyhow::Result<Exit> {
    match verb {
        WorkerVerb::List => list(client, format).await,
        WorkerVerb::Drain { id } => {
            for_each(client, id, "drain", async |id| {
                client.drain_worker(id).await?;
                output::done(format, &format!("Worker {id} drains."), &json!({"id": id, "draining": true}))
            })
            .await
        }
        WorkerVerb::Remove { id } => {
            for_each(client, id, "remove", async |id| {
                client.remove_worker(id).await?;
                output::done(format, &format!("Removed worker {id}."), &json!({"id": id, "removed": true}))
            })
            .await
        }
    }
}

/// Calls `action` for each worker. A worker that has already unregistered does not prevent the action on the others.
async fn for_each(
    client: &Client,
    ids: Vec<IdArgument>,
    verb: &str,
    action: impl AsyncFn(Uuid) -> anyhow::Result<()>,
) -> anyhow::Result<Exit> {
    let mut worst = Exit::Done;
    for id in ids {
        let done = async { action(id.worker(client).await?).await };
        if let Err(error) = done.await {
            worst = exit::report_of(error, &format!("cannot {verb} {id}"));
        }
    }
    Ok(worst)
}

async fn list(client: &Client, format: Output) -> anyhow::Result<Exit> {
    let page = list::every_page(async |cursor| client.workers(cursor).await).await?;
    list::print(
        format,
        &page,
        "No workers.",
        ["ID", "NAME", "STATE", "QUEUES", "KINDS", "JOBS", "AFFINITY", "LAST CLAIM", "AGE"],
        |worker| {
            [
                cell(worker.id),
                cell(&worker.name),
                output::state(state(worker)),
                cell(worker.queues.join(", ")),
                cell(worker.kinds.as_ref().map_or("any".into(), |kinds| kinds.join(", "))),
                cell(worker.claims),
                cell(worker.affinity.as_deref().unwrap_or_default()),
                cell(relative_maybe(worker.last_claim_at)),
                cell(relative(worker.registered_at)),
            ]
        },
    )?;
    Ok(Exit::Done)
}

fn state(worker: &WorkerView) -> &'static str {
    if worker.lease_until < wire::Timestamp::now() {
        "silent"
    } else if worker.draining {
        "draining"
    } else {
        "active"
    }
}
