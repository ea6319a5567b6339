//! Everything under `/api/v1`, one file per noun.

pub(crate) mod artifacts;
mod calls;
mod dead_letters;
mod deliveries;
mod events;
pub(crate) mod failures;
pub(crate) mod jobs;
mod kv;
mod processes;
pub(crate) mod queues;
mod signals;
mod signatures;
mod streams;
mod subjects;
mod tasks;
pub(crate) mod tokens;
mod triggers;
pub(crate) mod ttfs;
mod workers;

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
        .merge(tasks::routes())
}
