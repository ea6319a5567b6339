//! Everything under `/api/v1`, one file per noun.

mod artifacts;
mod calls;
mod deliveries;
mod jobs;
mod processes;
mod queues;
mod signals;
mod subjects;
mod tasks;
pub(crate) mod tokens;
mod workers;

use utoipa_axum::router::OpenApiRouter;

use crate::state::AppState;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .merge(jobs::routes())
        .merge(signals::routes())
        .merge(artifacts::routes())
        .merge(calls::routes())
        .merge(deliveries::routes())
        .merge(queues::routes())
        .merge(workers::routes())
        .merge(tokens::routes())
        .merge(subjects::routes())
        .merge(processes::routes())
        .merge(tasks::routes())
}
