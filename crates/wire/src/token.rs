//! Tokens and tenants (X6, X7).

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

/// A token to be made.
#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    /// Who uses it. Tokens of one name are one principal: a new one may take over from an old one.
    pub name: String,
    /// `admin`, `operator`, `producer`, `worker` or `viewer`.
    pub role: String,
    /// The caller's own unless given; others only by an admin of the tenant `system`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// It reaches these queues and nothing that is not a queue's; all, unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queues: Option<Vec<String>>,
    /// Beside what the role brings: `manage_triggers`, `manage_dead_letters`, `read_payloads`, `read_results`,
    /// `read_artifacts`, `read_logs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rights: Option<Vec<String>>,
    /// A worker of the tenant `system` takes work of these tenants, or of `"*"`, all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serves: Option<Serves>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Serves {
    /// `"*"`.
    Everyone(String),
    Tenants(Vec<String>),
}

/// A token as everyone who manages tokens may see it: all but its text.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TokenView {
    pub id: Uuid,
    pub name: String,
    pub role: String,
    pub tenant: String,
    /// All, when `null`.
    pub queues: Option<Vec<String>>,
    pub rights: Vec<String>,
    pub serves: Option<Serves>,
    /// `active`, `expired` or `revoked`.
    pub state: String,
    pub created_by: String,
    pub created_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    pub revoked_at: Option<Timestamp>,
    pub revoked_by: Option<String>,
    /// To the minute.
    pub last_used_at: Option<Timestamp>,
}

/// A new token, with its text this once.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TokenCreated {
    /// Keep it: it is shown this once and kept nowhere.
    pub token: String,
    #[serde(flatten)]
    pub view: TokenView,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TenantView {
    pub name: String,
    pub created_at: Timestamp,
}
