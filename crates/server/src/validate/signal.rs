//! A worker's word on how its job goes.

use domain::limits::{LABEL_BYTES, REASON_BYTES, RESULT_BYTES, TAGS, WAIT_S_MAX};
use domain::{Epoch, JobState};
use store::signals::refine::SignalChange;
use wire::{NextAction, RawValue, SignalUpdate};

use super::Place;
use crate::error::ApiError;

const HREF_BYTES: usize = 2_048;

pub(crate) fn change(update: SignalUpdate) -> Result<SignalChange, ApiError> {
    let place = Place::Body;
    let state = match update.state.as_deref() {
        None => None,
        Some("loading") => Some(JobState::Loading),
        Some("working") => Some(JobState::Working),
        Some(_) => return Err(place.refuse("state", "must be loading or working; outcomes are settled")),
    };
    Ok(SignalChange {
        epoch: Epoch(update.epoch),
        phase: place.opt_name("phase", update.phase.as_deref())?.map(|phase| phase.to_string()),
        progress: update.progress.map(|progress| place.between("progress", progress, 0.0, 1.0)).transpose()?,
        summary: update.summary.map(|summary| place.words("summary", summary, REASON_BYTES)).transpose()?,
        eta_s: update.eta_s.map(|eta_s| place.between("eta_s", eta_s, 0.0, WAIT_S_MAX as f64)).transpose()?,
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
            Err(Place::Body.refuse(member, format_args!("may have at most {RESULT_BYTES} bytes of JSON")))
        }
        value => Ok(value.map(|value| value.get().to_owned())),
    }
}

/// Links are shown to people: they lead to the web or into this server, and never run anything.
fn next_actions(actions: Vec<NextAction>) -> Result<String, ApiError> {
    Place::Body.at_most("next_actions", actions.len(), TAGS, "actions")?;
    for (number, action) in actions.iter().enumerate() {
        let place = Place::Item { of: "next_actions", number };
        place.words("label", action.label.clone(), LABEL_BYTES)?;
        let href = place.words("href", action.href.clone(), HREF_BYTES)?;
        if !matches!(action.method.as_deref(), None | Some("GET" | "POST" | "PUT" | "DELETE")) {
            return Err(place.refuse("method", "must be GET, POST, PUT or DELETE"));
        }
        let leads = ["https://", "http://", "/"].iter().any(|start| href.starts_with(start));
        if !leads || href.starts_with("//") {
            return Err(place.refuse("href", "must begin with https://, http:// or /"));
        }
    }
    Ok(serde_json::to_string(&actions).expect("plain data has a JSON form"))
}
