//! Flags for managing the local Docker engine, shared by `serve` and `agent`.

use std::collections::BTreeMap;
use std::path::Path;

use clap::Args;
use domain::limits::{NODE_MAX_SLOTS, PLACEMENT_LABELS, WAIT_MAX_S};
use domain::runtimes::placement::check_label;
use engine::runtimes::RuntimeOptions;
use store::runtimes::nodes::{LOST_AFTER_S, NodeOffer};

use super::exit::UsageError;

#[derive(Args)]
pub(crate) struct DriveArgs {
    /// Docker engine to manage: unix:// and the path of its socket
    #[arg(long, env = "WINDLASS_DOCKER_HOST", default_value = engine::runtimes::docker::DEFAULT_HOST)]
    pub(crate) docker_host: String,
    /// Name of this node; must stay the same across restarts, because runtimes are bound to it [default: the host name]
    #[arg(long, env = "WINDLASS_NODE")]
    pub(crate) node: Option<String>,
    /// Label of this node that runtimes can require: NAME=VALUE; may be repeated
    #[arg(long, env = "WINDLASS_ENGINE_LABEL", value_name = "NAME=VALUE", value_delimiter = ',')]
    pub(crate) engine_label: Vec<String>,
    /// Maximum number of running runtimes on this node [default: no limit]
    #[arg(long, env = "WINDLASS_ENGINE_SLOTS", value_name = "N")]
    pub(crate) engine_slots: Option<i64>,
    /// Seconds without a heartbeat of a node after which its movable runtimes are started on another node
    #[arg(long, env = "WINDLASS_MOVE_AFTER_S", value_name = "SECONDS", default_value_t = domain::limits::MOVE_AFTER_S)]
    pub(crate) move_after_s: i64,
}

impl DriveArgs {
    pub(crate) fn options(&self, data_dir: &Path) -> Result<RuntimeOptions, UsageError> {
        if !self.docker_host.starts_with("unix:///") {
            return Err(UsageError("--docker-host must be unix:// followed by the path of a socket".into()));
        }
        let machine = || rustix::system::uname().nodename().to_string_lossy().into_owned();
        let node = self.node.clone().unwrap_or_else(machine);
        domain::Label::new(&node).map_err(|error| UsageError(format!("--node {error}")))?;
        if self.engine_slots.is_some_and(|slots| !(0..=NODE_MAX_SLOTS).contains(&slots)) {
            return Err(UsageError(format!("--engine-slots must be from 0 to {NODE_MAX_SLOTS}")));
        }
        if !(LOST_AFTER_S..=WAIT_MAX_S).contains(&self.move_after_s) {
            return Err(UsageError(format!("--move-after-s must be from {LOST_AFTER_S} to {WAIT_MAX_S}")));
        }
        let offer = NodeOffer { labels: labels("--engine-label", &self.engine_label)?, slots: self.engine_slots };
        let options = RuntimeOptions::new(&node, &self.docker_host, data_dir.join("runtimes"));
        Ok(RuntimeOptions { offer, move_after_s: self.move_after_s, ..options })
    }
}

/// Parses repeated `NAME=VALUE` arguments.
pub(crate) fn labels(flag: &str, given: &[String]) -> Result<BTreeMap<String, String>, UsageError> {
    if given.len() > PLACEMENT_LABELS {
        return Err(UsageError(format!("{flag} can be repeated at most {PLACEMENT_LABELS} times")));
    }
    let pair = |text: &String| {
        let (name, value) =
            text.split_once('=').ok_or_else(|| UsageError(format!("{flag} must be NAME=VALUE, not `{text}`")))?;
        check_label(name, value).map_err(|error| UsageError(format!("{flag} {text} {error}")))?;
        Ok((name.to_owned(), value.to_owned()))
    };
    given.iter().map(pair).collect()
}
