//! Tokens and tenants.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

/// A request to create a token.
#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    /// The principal that uses the token. Tokens with the same name belong to one principal, so that a new token can
    /// replace an old one.
    pub name: String,
    /// `admin`, `operator`, `producer`, `worker` or `viewer`.
    pub role: String,
    /// The token's tenant. Only an admin of the tenant `system` may name another tenant. Default: the caller's tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Restricts the token to these queues; resources that belong to no queue are then out of reach. Default: all
    /// queues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queues: Option<Vec<String>>,
    /// Rights in addition to those of the role: `manage_triggers`, `manage_dead_letters`, `read_payloads`,
    /// `read_results`, `read_artifacts`, `read_logs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rights: Option<Vec<String>>,
    /// Tenants that this worker claims jobs of, or `"*"` for all tenants. Only for workers of the tenant `system`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serves: Option<Serves>,
    /// When the token expires. Default: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Serves {
    /// `"*"`.
    Everyone(String),
    /// These tenants.
    Tenants(Vec<String>),
}

/// A token without its secret text.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TokenView {
    /// The token's id.
    pub id: Uuid,
    /// A label for people. It does not need to be unique.
    pub name: String,
    /// `admin`, `operator`, `producer`, `worker` or `viewer`.
    pub role: String,
    /// The tenant that the token belongs to.
    pub tenant: String,
    /// The queues that the token may use; `null` means all.
    pub queues: Option<Vec<String>>,
    /// Every right of the token: those of its role and the additional ones.
    pub rights: Vec<String>,
    /// The other tenants whose jobs a worker with this token may claim.
    pub serves: Option<Serves>,
    /// `active`, `expired` or `revoked`.
    pub state: String,
    /// The principal that created the token.
    pub created_by: String,
    /// When the token was created.
    pub created_at: Timestamp,
    /// When the token expires; `null` means never.
    pub expires_at: Option<Timestamp>,
    /// When the token was revoked.
    pub revoked_at: Option<Timestamp>,
    /// The principal that revoked the token.
    pub revoked_by: Option<String>,
    /// Recorded with a precision of one minute.
    pub last_used_at: Option<Timestamp>,
}

/// A new token with its secret text, which is shown only in this response.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TokenCreated {
    /// The token's secret text. Store it now: the server keeps only a hash and cannot show it again.
    pub token: String,
    /// The token without its secret text.
    #[serde(flatten)]
    pub view: TokenView,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TenantView {
    /// The tenant's name.
    pub name: String,
    /// When the tenant was created.
    pub created_at: Timestamp,
}
