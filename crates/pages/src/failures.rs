//! What fails, grouped by what it has in common; the cause, once somebody knows it; and all of it again.

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

    /// A cause is written where there is a signature to write it to.
    fn can_name(&self, group: &FailureView) -> bool {
        self.frame.can.operate && self.signature(group).is_some()
    }
}

fn hourly(group: &FailureView) -> String {
    let lately: i64 = group.hourly.iter().sum();
    format!("{} in the hours shown, {}", html::count(&lately), group.trend)
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
