//! Errors as RFC 9457 problem documents. `code` is stable; `detail` is meant for people and may change.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::queue::job::JobError;

#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// The address of the error's documentation, relative to the server.
    #[serde(rename = "type")]
    pub kind: String,
    /// The error in a few words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What went wrong and what to change.
    pub detail: String,
    /// The stable error code.
    pub code: String,
    /// The request field that caused the error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// The job that a synchronous call created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<Uuid>,
    /// The error with which that job failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<JobError>,
}

impl Problem {
    /// The `type` of a problem with this code.
    pub fn kind_of(code: &str) -> String {
        format!("/docs/reference/error-codes#{code}")
    }
}

/// Error codes. They are part of the API and do not change. Each has a section in `docs/reference/error-codes.md`.
pub mod code {
    pub const INVALID_JSON: &str = "invalid_json";
    /// The request body was incomplete; nothing was changed.
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
    /// Other work on the subject is in progress; `detail` names it.
    pub const SUBJECT_BUSY: &str = "subject_busy";
    /// The credential is missing, unknown or expired.
    pub const UNAUTHORIZED: &str = "unauthorized";
    pub const CLAIM_LOST: &str = "claim_lost";
    pub const ILLEGAL_TRANSITION: &str = "illegal_transition";
    pub const WORKER_GONE: &str = "worker_gone";
    pub const IDEMPOTENCY_KEY_REUSED: &str = "idempotency_key_reused";
    /// `If-Match` or `If-None-Match` does not hold; nothing was changed.
    pub const PRECONDITION_FAILED: &str = "precondition_failed";
    pub const ARTIFACT_EXISTS: &str = "artifact_exists";
    /// The job is claimed, and the upload of an artifact does not name the claim.
    pub const EPOCH_REQUIRED: &str = "epoch_required";
    pub const DIGEST_MISMATCH: &str = "digest_mismatch";
    /// The node has no copy of the stored blob; another node may have one.
    pub const BLOB_MISSING: &str = "blob_missing";
    pub const ALREADY_RESOLVED: &str = "already_resolved";
    /// The job was already retried with a different payload; `detail` names the new job.
    pub const ALREADY_RETRIED: &str = "already_retried";
    pub const NOT_REPLAYABLE: &str = "not_replayable";
    pub const NAME_TAKEN: &str = "name_taken";
    pub const BAD_SIGNATURE: &str = "bad_signature";
    pub const REPLAY_REFUSED: &str = "replay_refused";
    pub const HOST_NOT_ALLOWED: &str = "host_not_allowed";
    /// Tokens exist, and the request carries none.
    pub const TOKEN_REQUIRED: &str = "token_required";
    /// The token is unknown, has expired or was revoked.
    pub const INVALID_TOKEN: &str = "invalid_token";
    /// The token is valid but lacks the right for this request.
    pub const FORBIDDEN: &str = "forbidden";
    /// The handler of a synchronous call rejected the request. The codes below: it failed, was unavailable, timed out,
    /// ran out of resources, or crashed.
    pub const CALL_REFUSED: &str = "call_refused";
    pub const CALL_FAILED: &str = "call_failed";
    pub const CALL_UNAVAILABLE: &str = "call_unavailable";
    pub const CALL_TIMED_OUT: &str = "call_timed_out";
    pub const CALL_OUT_OF_RESOURCES: &str = "call_out_of_resources";
    pub const CALL_BROKEN: &str = "call_broken";
    /// A quota of the tenant is used up; `Retry-After` says when to retry.
    pub const OVER_QUOTA: &str = "over_quota";
    pub const LIMIT_REACHED: &str = "limit_reached";
    /// The journal of the job is full; nothing was recorded.
    pub const JOURNAL_FULL: &str = "journal_full";
    /// A recorded step was met with another digest or operation; nothing was recorded.
    pub const WORKFLOW_DRIFT: &str = "workflow_drift";
    pub const SIGNATURE_EXISTS: &str = "signature_exists";
    /// The image of a runtime is not acceptable: it has no version, it is more than a patch update, or another reason.
    pub const IMAGE_REF_NOT_SEMVER: &str = "image_ref_not_semver";
    pub const SEMVER_PATCH_ONLY: &str = "semver_patch_only";
    pub const INVALID_REQUEST: &str = "invalid_request";
    /// The runtime's state does not permit the operation.
    pub const CONFLICT: &str = "conflict";
    pub const DOCKER_UNAVAILABLE: &str = "docker_unavailable";
    /// No node manages the required Docker engine, or the engine is unreachable from this node.
    pub const SERVICE_UNAVAILABLE: &str = "service_unavailable";
    /// Nothing was changed; the same request may succeed later.
    pub const UNAVAILABLE: &str = "unavailable";
    /// The change may or may not have been committed.
    pub const OUTCOME_UNKNOWN: &str = "outcome_unknown";
    pub const INTERNAL: &str = "internal";
}
