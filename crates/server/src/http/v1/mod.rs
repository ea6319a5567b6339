//! Everything under `/api/v1`, one file per noun.

mod artifacts;
mod calls;
mod deliveries;
mod failures;
mod jobs;
mod queues;
mod signals;
mod signatures;
mod streams;
mod tasks;
pub(crate) mod tokens;
mod ttfs;
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
        .merge(tasks::routes())
}
