//! Everything under `/api/v1`, one file per noun.

pub(crate) mod artifacts;
pub(crate) mod calls;
pub(crate) mod dead_letters;
pub(crate) mod deliveries;
mod events;
pub(crate) mod failures;
pub(crate) mod history;
pub(crate) mod jobs;
mod kv;
pub(crate) mod nodes;
pub(crate) mod pools;
pub(crate) mod processes;
pub(crate) mod queues;
pub(crate) mod runtimes;
mod signals;
pub(crate) mod signatures;
mod streams;
pub(crate) mod subjects;
pub(crate) mod tasks;
pub(crate) mod tokens;
pub(crate) mod triggers;
pub(crate) mod ttfs;
pub(crate) mod workers;

use utoipa_axum::router::OpenApiRouter;

use crate::state::AppState;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .merge(jobs::routes())
        .merge(signals::routes())
        .merge(streams::routes())
        .merge(signatures::routes())
        .merge(failures::routes())
        .merge(ttfs::routes())
        .merge(artifacts::routes())
        .merge(calls::routes())
        .merge(deliveries::routes())
        .merge(queues::routes())
        .merge(workers::routes())
        .merge(tokens::routes())
        .merge(subjects::routes())
        .merge(processes::routes())
        .merge(triggers::routes())
        .merge(events::routes())
        .merge(kv::routes())
        .merge(dead_letters::routes())
        .merge(runtimes::routes())
        .merge(nodes::routes())
        .merge(pools::routes())
        .merge(history::routes())
        .merge(tasks::routes())
}
