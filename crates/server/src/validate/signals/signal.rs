//! Validation of a worker's signal update.

use domain::limits::{LABEL_BYTES, REASON_BYTES, RESULT_BYTES, TAGS, WAIT_MAX_S};
use domain::{Epoch, JobState, SignalKind};
use store::signals::refine::SignalChange;
use wire::{NextAction, RawValue, SignalUpdate};

use crate::error::ApiError;
use crate::validate::FieldPath;

const HREF_BYTES: usize = 2_048;

pub(crate) fn change(update: SignalUpdate) -> Result<SignalChange, ApiError> {
    let path = FieldPath::Body;
    let state = match update.state.as_deref() {
        None => None,
        Some("loading") => Some(JobState::Loading),
        Some("working") => Some(JobState::Working),
        Some(_) => return Err(path.refuse("state", "must be loading or working; report outcomes with settle")),
    };
    let kind = match update.kind.as_deref() {
        None | Some("started" | "phase") => None,
        Some("blocked") => Some(SignalKind::Blocked),
        Some("unavailable") => Some(SignalKind::Unavailable),
        Some(_) => return Err(path.refuse("kind", "must be blocked, unavailable, started or phase")),
    };
    Ok(SignalChange {
        kind,
        epoch: Epoch(update.epoch),
        phase: path.optional_name("phase", update.phase.as_deref())?.map(|phase| phase.to_string()),
        progress: update.progress.map(|progress| path.between("progress", progress, 0.0, 1.0)).transpose()?,
        summary: update.summary.map(|summary| path.free_text("summary", summary, REASON_BYTES)).transpose()?,
        eta_s: update.eta_s.map(|eta_s| path.between("eta_s", eta_s, 0.0, WAIT_MAX_S as f64)).transpose()?,
        last_known_outcome: json("last_known_outcome", update.last_known_outcome)?,
        next_actions: update.next_actions.map(next_actions).transpose()?,
        diagnostics: json("diagnostics", update.diagnostics)?,
        payload: json("payload", update.payload)?,
        state,
    })
}

fn json(member: &str, value: Option<Box<RawValue>>) -> Result<Option<String>, ApiError> {
    match value {
        Some(value) if value.get().len() > RESULT_BYTES => {
            Err(FieldPath::Body.refuse(member, format_args!("may have at most {RESULT_BYTES} bytes of JSON")))
        }
        value => Ok(value.map(|value| value.get().to_owned())),
    }
}

/// Links are shown to users: they must lead to a web page or a route of this server, and must not run scripts.
fn next_actions(actions: Vec<NextAction>) -> Result<String, ApiError> {
    FieldPath::Body.at_most("next_actions", actions.len(), TAGS, "actions")?;
    for (number, action) in actions.iter().enumerate() {
        let path = FieldPath::Item { of: "next_actions", number };
        path.free_text("label", action.label.clone(), LABEL_BYTES)?;
        let href = path.free_text("href", action.href.clone(), HREF_BYTES)?;
        if !matches!(action.method.as_deref(), None | Some("GET" | "POST" | "PUT" | "DELETE")) {
            return Err(path.refuse("method", "must be GET, POST, PUT or DELETE"));
        }
        let is_link = ["https://", "http://", "/"].iter().any(|start| href.starts_with(start));
        if !is_link || href.starts_with("//") {
            return Err(path.refuse("href", "must begin with https://, http:// or /"));
        }
    }
    Ok(serde_json::to_string(&actions).expect("plain data has a JSON form"))
}
