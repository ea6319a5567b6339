//! Who asks. Every handler takes a `Principal`: nothing is reachable without one, and the tenant comes from it alone.
//!
//! While no tokens exist, whoever reaches the server (on loopback only, see `host`) is the local operator.

use std::convert::Infallible;
use std::sync::{Arc, LazyLock};

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use domain::TenantId;

use crate::state::AppState;

#[derive(Clone, Debug)]
pub struct Principal {
    pub tenant: TenantId,
    pub name: Arc<str>,
}

impl FromRequestParts<AppState> for Principal {
    type Rejection = Infallible;

    async fn from_request_parts(_: &mut Parts, _: &AppState) -> Result<Self, Infallible> {
        static LOCAL: LazyLock<Arc<str>> = LazyLock::new(|| "local".into());
        Ok(Self { tenant: TenantId::DEFAULT, name: LOCAL.clone() })
    }
}
