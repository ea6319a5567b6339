//! How a process drives the Docker engine beside it: what `serve` and `agent` are told alike.

use std::collections::BTreeMap;
use std::path::Path;

use clap::Args;
use domain::limits::{NODE_SLOTS_MAX, PLACEMENT_LABELS, WAIT_S_MAX};
use domain::runtime::placement::check_label;
use engine::runtime::RuntimeOptions;
use store::runtimes::nodes::{LOST_AFTER_S, NodeOffer};

use super::exit::UsageError;

#[derive(Args)]
pub(crate) struct DriveArgs {
    /// The Docker engine that runtimes are started on: unix:// and the path of its socket.
    #[arg(long, env = "WINDLASS_DOCKER_HOST", default_value = engine::runtime::docker::DEFAULT_HOST)]
    pub(crate) docker_host: String,
    /// What this node is called, the same after a restart: runtimes are bound to it. The machine's name, unless given.
    #[arg(long, env = "WINDLASS_NODE")]
    pub(crate) node: Option<String>,
    /// Something that runtimes may ask of their node: NAME=VALUE. May be given again.
    #[arg(long, env = "WINDLASS_ENGINE_LABEL", value_name = "NAME=VALUE", value_delimiter = ',')]
    pub(crate) engine_label: Vec<String>,
    /// Runtimes that may be up on this node at once; as many as come, unless given.
    #[arg(long, env = "WINDLASS_ENGINE_SLOTS", value_name = "N")]
    pub(crate) engine_slots: Option<i64>,
    /// Seconds for which a node is silent before movable runtimes are started on another.
    #[arg(long, env = "WINDLASS_MOVE_AFTER_S", value_name = "SECONDS", default_value_t = domain::limits::MOVE_AFTER_S)]
    pub(crate) move_after_s: i64,
}

impl DriveArgs {
    pub(crate) fn options(&self, data_dir: &Path) -> Result<RuntimeOptions, UsageError> {
        if !self.docker_host.starts_with("unix:///") {
            return Err(UsageError("--docker-host must be unix:// and the path of a socket".into()));
        }
        let machine = || rustix::system::uname().nodename().to_string_lossy().into_owned();
        let node = self.node.clone().unwrap_or_else(machine);
        domain::Label::new(&node).map_err(|error| UsageError(format!("--node {error}")))?;
        if self.engine_slots.is_some_and(|slots| !(0..=NODE_SLOTS_MAX).contains(&slots)) {
            return Err(UsageError(format!("--engine-slots must be from 0 to {NODE_SLOTS_MAX}")));
        }
        if !(LOST_AFTER_S..=WAIT_S_MAX).contains(&self.move_after_s) {
            return Err(UsageError(format!("--move-after-s must be from {LOST_AFTER_S} to {WAIT_S_MAX}")));
        }
        let offer = NodeOffer { labels: labels("--engine-label", &self.engine_label)?, slots: self.engine_slots };
        let options = RuntimeOptions::new(&node, &self.docker_host, data_dir.join("runtimes"));
        Ok(RuntimeOptions { offer, move_after_s: self.move_after_s, ..options })
    }
}

/// `NAME=VALUE`, any number of times.
pub(crate) fn labels(flag: &str, given: &[String]) -> Result<BTreeMap<String, String>, UsageError> {
    if given.len() > PLACEMENT_LABELS {
        return Err(UsageError(format!("{flag} may be given at most {PLACEMENT_LABELS} times")));
    }
    let pair = |text: &String| {
        let (name, value) =
            text.split_once('=').ok_or_else(|| UsageError(format!("{flag} takes NAME=VALUE, not `{text}`")))?;
        check_label(name, value).map_err(|error| UsageError(format!("{flag} {text} {error}")))?;
        Ok((name.to_owned(), value.to_owned()))
    };
    given.iter().map(pair).collect()
}
