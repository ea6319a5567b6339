//! Errors as RFC 9457 problem documents. `code` is stable; `detail` is for people and may change.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::job::JobError;

#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    #[serde(rename = "type")]
    pub kind: String,
    pub title: String,
    pub status: u16,
    /// What went wrong and what to change.
    pub detail: String,
    pub code: String,
    /// The field of the request that is to blame.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// The job that a call made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<Uuid>,
    /// How that job failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<JobError>,
}

/// The codes a program may rely on.
pub mod code {
    pub const INVALID_JSON: &str = "invalid_json";
    /// The request did not arrive whole; nothing was done.
    pub const BODY_BROKEN_OFF: &str = "body_broken_off";
    pub const INVALID_FIELD: &str = "invalid_field";
    pub const UNSUPPORTED_MEDIA_TYPE: &str = "unsupported_media_type";
    pub const BODY_TOO_LARGE: &str = "body_too_large";
    pub const INVALID_CURSOR: &str = "invalid_cursor";
    pub const INVALID_QUERY: &str = "invalid_query";
    pub const INVALID_HEADER: &str = "invalid_header";
    pub const NOT_FOUND: &str = "not_found";
    pub const NO_SUCH_ROUTE: &str = "no_such_route";
    pub const METHOD_NOT_ALLOWED: &str = "method_not_allowed";
    pub const ALREADY_ENDED: &str = "already_ended";
    pub const NOT_ENDED: &str = "not_ended";
    /// Work is under way; `detail` names it.
    pub const SUBJECT_BUSY: &str = "subject_busy";
    /// The credential is missing, unknown or ended.
    pub const UNAUTHORIZED: &str = "unauthorized";
    pub const CLAIM_LOST: &str = "claim_lost";
    pub const ILLEGAL_TRANSITION: &str = "illegal_transition";
    pub const WORKER_GONE: &str = "worker_gone";
    pub const IDEMPOTENCY_KEY_REUSED: &str = "idempotency_key_reused";
    /// It is not as `If-Match` or `If-None-Match` say; nothing was changed.
    pub const PRECONDITION_FAILED: &str = "precondition_failed";
    pub const ARTIFACT_EXISTS: &str = "artifact_exists";
    pub const DIGEST_MISMATCH: &str = "digest_mismatch";
    /// The node that was asked does not find what was stored; another may.
    pub const BLOB_MISSING: &str = "blob_missing";
    pub const ALREADY_RESOLVED: &str = "already_resolved";
    /// It was retried before with another payload; `detail` names what it was retried as.
    pub const ALREADY_RETRIED: &str = "already_retried";
    pub const NOT_REPLAYABLE: &str = "not_replayable";
    pub const NAME_TAKEN: &str = "name_taken";
    pub const BAD_SIGNATURE: &str = "bad_signature";
    pub const REPLAY_REFUSED: &str = "replay_refused";
    pub const HOST_NOT_ALLOWED: &str = "host_not_allowed";
    /// There are tokens, and the request carries none.
    pub const TOKEN_REQUIRED: &str = "token_required";
    /// The token is unknown, has expired or was revoked.
    pub const INVALID_TOKEN: &str = "invalid_token";
    /// The token is good, and not for this.
    pub const FORBIDDEN: &str = "forbidden";
    /// A call's handler will not do this, or tried and failed, or broke, or ran out of something.
    pub const CALL_REFUSED: &str = "call_refused";
    pub const CALL_FAILED: &str = "call_failed";
    pub const CALL_UNAVAILABLE: &str = "call_unavailable";
    pub const CALL_TIMED_OUT: &str = "call_timed_out";
    pub const CALL_OUT_OF_RESOURCES: &str = "call_out_of_resources";
    pub const CALL_BROKEN: &str = "call_broken";
    /// A quota of the tenant is used up for now; `Retry-After` says when to come back.
    pub const OVER_QUOTA: &str = "over_quota";
    pub const LIMIT_REACHED: &str = "limit_reached";
    pub const SIGNATURE_EXISTS: &str = "signature_exists";
    /// No node drives the Docker engine that is needed, or it cannot be reached from here.
    pub const SERVICE_UNAVAILABLE: &str = "service_unavailable";
    /// Nothing was done; the same request may succeed later.
    pub const UNAVAILABLE: &str = "unavailable";
    /// It may have been done or not.
    pub const OUTCOME_UNKNOWN: &str = "outcome_unknown";
    pub const SHUTTING_DOWN: &str = "shutting_down";
    pub const INTERNAL: &str = "internal";
}
