//! The routes under `/api/v1`, one file per noun.

pub(crate) mod access;
pub(crate) mod fleet;
pub(crate) mod queue;
pub(crate) mod runtimes;
pub(crate) mod signals;
pub(crate) mod tasks;
pub(crate) mod triggers;
pub(crate) mod workflows;

use utoipa_axum::router::OpenApiRouter;

use crate::state::AppState;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .merge(crate::http::v1::queue::jobs::routes())
        .merge(crate::http::v1::signals::job_signals::routes())
        .merge(crate::http::v1::signals::streams::routes())
        .merge(crate::http::v1::signals::signatures::routes())
        .merge(crate::http::v1::signals::failures::routes())
        .merge(crate::http::v1::signals::ttfs::routes())
        .merge(crate::http::v1::queue::artifacts::routes())
        .merge(crate::http::v1::queue::calls::routes())
        .merge(crate::http::v1::triggers::deliveries::routes())
        .merge(crate::http::v1::queue::queues::routes())
        .merge(crate::http::v1::queue::workers::routes())
        .merge(crate::http::v1::workflows::journal::routes())
        .merge(crate::http::v1::access::tokens::routes())
        .merge(crate::http::v1::fleet::subjects::routes())
        .merge(crate::http::v1::fleet::processes::routes())
        .merge(crate::http::v1::triggers::declarations::routes())
        .merge(crate::http::v1::triggers::events::routes())
        .merge(crate::http::v1::triggers::kv::routes())
        .merge(crate::http::v1::triggers::dead_letters::routes())
        .merge(crate::http::v1::runtimes::declarations::routes())
        .merge(crate::http::v1::runtimes::nodes::routes())
        .merge(crate::http::v1::runtimes::pools::routes())
        .merge(crate::http::v1::workflows::runs::routes())
        .merge(crate::http::v1::workflows::run_signals::routes())
        .merge(crate::http::v1::access::history::routes())
        .merge(tasks::routes())
}
