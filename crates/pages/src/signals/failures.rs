//! The failures page: failure groups, their signatures and replay.

use std::collections::HashMap;

use askama::Template;
use uuid::Uuid;
use wire::{FailureView, Page, SignatureView};

use crate::chart;
use crate::frame::Frame;
use crate::html;

#[derive(Debug, Template)]
#[template(path = "failures.html")]
pub struct Failures {
    pub frame: Frame,
    pub page: Page<FailureView>,
    pub signatures: HashMap<Uuid, SignatureView>,
}

impl Failures {
    fn signature(&self, group: &FailureView) -> Option<&SignatureView> {
        self.signatures.get(&group.signature_id?)
    }

    /// True if the reader may record a cause, which requires a signature to store it in.
    fn can_name(&self, group: &FailureView) -> bool {
        self.frame.can.operate && self.signature(group).is_some()
    }
}

fn hourly(group: &FailureView) -> String {
    let total: i64 = group.hourly.iter().sum();
    format!("{} in the last 24 hours, {}", html::count(&total), group.trend)
}

fn text(text: &Option<String>) -> &str {
    text.as_deref().unwrap_or_default()
}

fn repair(seconds: &Option<f64>) -> String {
    seconds.map_or_else(|| "–".into(), html::seconds)
}

fn pct(confidence: &f64) -> i64 {
    (confidence * 100.0).round() as i64
}
