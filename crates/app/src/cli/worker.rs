//! `windlass worker`: who works, on what, and how much each has.

use clap::Subcommand;
use client::Client;
use serde_json::json;
use uuid::Uuid;
use wire::WorkerView;

use super::exit::{self, Exit};
use super::list;
use super::output::{self, Output, cell, relative, relative_maybe};

#[derive(Subcommand)]
pub(crate) enum Verb {
    /// List workers.
    List,
    /// End workers; their jobs go back to the queues without burning an attempt.
    Remove {
        #[arg(required = true)]
        id: Vec<Uuid>,
    },
}

pub(super) async fn run(client: &Client, verb: Verb, format: Output) -> anyhow::Result<Exit> {
    match verb {
        Verb::List => list(client, format).await,
        Verb::Remove { id } => {
            // One that has left already must not keep the others.
            let mut worst = Exit::Done;
            for id in id {
                match client.remove_worker(id).await {
                    Ok(()) => {
                        output::done(
                            format,
                            &format!("Worker {id} was removed."),
                            &json!({"id": id, "removed": true}),
                        )?;
                    }
                    Err(error) => worst = exit::report_of(error, &format!("cannot remove {id}")),
                }
            }
            Ok(worst)
        }
    }
}

async fn list(client: &Client, format: Output) -> anyhow::Result<Exit> {
    let page = list::every_page(async |cursor| client.workers(cursor).await).await?;
    list::print(
        format,
        &page,
        "There are no workers.",
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
