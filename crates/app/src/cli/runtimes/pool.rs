//! `windlass pool`: pools of slots that runtimes share.

use clap::{Args, Subcommand, ValueEnum};
use client::Client;
use serde_json::json;
use wire::{HandlerSettings, MemberSettings, MemberView, PlacementSettings, PoolRequest, PoolView};

use crate::cli::drive::labels;
use crate::cli::exit::{Exit, UsageError};
use crate::cli::list;
use crate::cli::output;
use crate::cli::output::{Details, Listing, Output, cell, relative_maybe};
use crate::cli::value::seconds;

#[derive(Subcommand)]
pub(crate) enum PoolVerb {
    /// List pools with their figures
    List,
    /// Show a pool: members, loaded runtimes, waiting jobs, swaps
    Status { name: String },
    /// Create or change a pool; settings that are not given keep their values
    Set(Box<PoolSetArgs>),
    /// Delete a pool; its runtimes are not changed
    Delete { name: String },
}

#[derive(Args)]
pub(crate) struct PoolSetArgs {
    name: String,
    /// Maximum number of runtimes that run at the same time [default: 1]
    #[arg(long, value_name = "N")]
    slots: Option<u32>,
    /// Memory available to the running runtimes
    #[arg(long, value_name = "MB")]
    memory_mb: Option<i64>,
    /// Member as AFFINITY=RUNTIME, optionally followed by :preloaded or :pinned; repeat for all members of the pool
    #[arg(long = "member", value_name = "AFFINITY=RUNTIME")]
    members: Vec<String>,
    /// Queue that the pool runs the jobs of [default: the name of the pool]
    #[arg(long)]
    queue: Option<String>,
    /// Seconds for which older jobs of other affinities may be passed over
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    starvation_s: Option<i64>,
    /// Stop a runtime after this many seconds without work
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    idle_stop_s: Option<i64>,
    /// Path of the runtime's endpoint that receives payloads by POST [default: /]
    #[arg(long, value_name = "PATH")]
    path: Option<String>,
    /// Timeout of a job [default: 300]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout_s: Option<i64>,
    /// Jobs in progress per slot [default: 1]
    #[arg(long, value_name = "N")]
    at_once: Option<u32>,
    /// Label that the pool's node must have: NAME=VALUE; repeat for all required labels
    #[arg(long = "placement", value_name = "NAME=VALUE")]
    placement: Vec<String>,
    /// Reset a setting to its default; may be repeated
    #[arg(long, value_enum, value_name = "SETTING")]
    unset: Vec<PoolSetting>,
}

#[derive(Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum PoolSetting {
    MemoryMb,
    StarvationS,
    IdleStopS,
    Placement,
}

impl PoolSetArgs {
    /// Returns the settings with the given flags applied.
    fn apply(self, mut before: PoolRequest) -> Result<PoolRequest, UsageError> {
        for setting in &self.unset {
            match setting {
                PoolSetting::MemoryMb => before.memory_mb = None,
                PoolSetting::StarvationS => before.starvation_s = None,
                PoolSetting::IdleStopS => before.idle_stop_s = None,
                PoolSetting::Placement => before.placement = None,
            }
        }
        let members = self.members.iter().map(|text| member(text)).collect::<Result<Vec<_>, _>>()?;
        let labels = labels("--placement", &self.placement)?;
        let handler = before.handler.unwrap_or_default();
        Ok(PoolRequest {
            slots: self.slots.unwrap_or(before.slots),
            memory_mb: self.memory_mb.or(before.memory_mb),
            members: if members.is_empty() { before.members } else { members },
            queue: self.queue.or(before.queue),
            starvation_s: self.starvation_s.or(before.starvation_s),
            idle_stop_s: self.idle_stop_s.or(before.idle_stop_s),
            handler: Some(HandlerSettings {
                path: self.path.or(handler.path),
                timeout_s: self.timeout_s.or(handler.timeout_s),
                at_once: self.at_once.or(handler.at_once),
            }),
            placement: if labels.is_empty() { before.placement } else { Some(PlacementSettings { labels }) },
        })
    }
}

fn member(text: &str) -> Result<MemberSettings, UsageError> {
    let usage = || UsageError(format!("--member must be AFFINITY=RUNTIME, not `{text}`"));
    let (affinity, rest) = text.rsplit_once('=').ok_or_else(usage)?;
    let (runtime, stay) = match rest.split_once(':') {
        Some((runtime, stay)) => (runtime, Some(stay.to_owned())),
        None => (rest, None),
    };
    Ok(MemberSettings { affinity: affinity.to_owned(), runtime: runtime.to_owned(), stay })
}

/// The request that would declare the pool as it is.
pub(crate) fn declared(pool: PoolView) -> PoolRequest {
    let member = |member: MemberView| {
        let MemberView { affinity, runtime, stay, .. } = member;
        MemberSettings { affinity, runtime, stay: Some(stay) }
    };
    PoolRequest {
        slots: pool.slots,
        memory_mb: pool.memory_mb,
        members: pool.members.into_iter().map(member).collect(),
        queue: Some(pool.queue),
        starvation_s: pool.starvation_s,
        idle_stop_s: pool.idle_stop_s,
        handler: Some(pool.handler),
        placement: Some(pool.placement),
    }
}

pub(crate) async fn run(client: &Client, verb: PoolVerb, format: Output) -> anyhow::Result<Exit> {
    let pool = match verb {
        PoolVerb::List => return list(client, format).await,
        PoolVerb::Delete { name } => {
            client.delete_pool(&name).await?;
            output::done(format, &format!("Deleted pool {name}."), &json!({"name": name, "deleted": true}))?;
            return Ok(Exit::Done);
        }
        PoolVerb::Status { name } => client.pool(&name).await?,
        PoolVerb::Set(args) => set(client, *args).await?,
    };
    match format {
        Output::Json => output::json(&pool)?,
        Output::Table => show(&pool)?,
    }
    Ok(Exit::Done)
}

// The route replaces all settings, so read the current ones first and change only those that were given.
async fn set(client: &Client, args: PoolSetArgs) -> anyhow::Result<PoolView> {
    let name = args.name.clone();
    let before = match client.pool(&name).await {
        Ok(pool) => declared(pool),
        Err(error) if error.status() == Some(404) => PoolRequest { slots: 1, ..PoolRequest::default() },
        Err(error) => return Err(error.into()),
    };
    let request = args.apply(before)?;
    if request.members.is_empty() {
        return Err(UsageError("a new pool needs --member AFFINITY=RUNTIME".into()).into());
    }
    Ok(client.set_pool(&name, &request).await?)
}

async fn list(client: &Client, format: Output) -> anyhow::Result<Exit> {
    let page = list::every_page(async |cursor| client.pools(cursor).await).await?;
    list::print(
        format,
        &page,
        "No pools.",
        ["NAME", "SLOTS", "LOADED", "WAITING", "SWAPS", "AVOIDED", "TIME SAVED"],
        |pool| {
            let loaded: Vec<&str> = pool
                .members
                .iter()
                .filter(|member| member.state == "loaded")
                .map(|member| member.affinity.as_str())
                .collect();
            [
                cell(&pool.name),
                cell(pool.slots),
                cell(loaded.join(", ")),
                cell(pool.members.iter().map(|member| member.waiting).sum::<i64>()),
                cell(pool.swaps_made),
                cell(pool.swaps_avoided),
                cell(format!("{:.1} min", pool.minutes_saved)),
            ]
        },
    )?;
    Ok(Exit::Done)
}

/// For example "12.5 s (stop 10.2 s, start 2.3 s)".
fn swap(pool: &PoolView) -> Option<String> {
    let swap_s = pool.swap_s?;
    Some(match (pool.stop_s, pool.load_s) {
        (Some(stop_s), Some(load_s)) => format!("{swap_s:.1} s (stop {stop_s:.1} s, start {load_s:.1} s)"),
        _ => format!("{swap_s:.1} s"),
    })
}

fn show(pool: &PoolView) -> anyhow::Result<()> {
    let mut details = Details::new();
    details
        .text("pool", &pool.name)
        .text("queue", &pool.queue)
        .text("slots", pool.slots)
        .maybe("memory", pool.memory_mb.map(|mb| format!("{mb} MB")))
        .maybe("node", pool.node.as_ref())
        .maybe("placement", Some(super::runtime::label_args(&pool.placement).join(" ")).filter(|text| !text.is_empty()))
        .text("swaps made", pool.swaps_made)
        .text("swaps avoided", pool.swaps_avoided)
        .maybe("mean swap time", swap(pool))
        .text("time saved", format!("{:.1} min", pool.minutes_saved))
        .maybe("starvation clock", pool.starvation_clock_s.map(|seconds| format!("{seconds:.0} s")))
        .maybe("starvation limit", pool.starvation_s.map(|seconds| format!("{seconds} s")));
    details.print()?;
    let mut listing = Listing::new(&["AFFINITY", "RUNTIME", "STATE", "STAY", "WAITING", "OLDEST", "BACKOFF CAUSE"]);
    for member in &pool.members {
        listing.row([
            cell(&member.affinity),
            cell(&member.runtime),
            output::state(&member.state),
            cell(&member.stay),
            cell(member.waiting),
            cell(relative_maybe(member.oldest)),
            cell(member.cause.as_deref().unwrap_or_default()),
        ]);
    }
    listing.print()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::tests::parse_args;

    fn before() -> PoolRequest {
        PoolRequest {
            slots: 2,
            memory_mb: Some(16_000),
            members: vec![member("llama=llama:pinned").unwrap()],
            queue: Some("gpu".into()),
            idle_stop_s: Some(60),
            handler: Some(HandlerSettings { path: Some("/v1".into()), timeout_s: Some(9), at_once: Some(3) }),
            ..PoolRequest::default()
        }
    }

    fn check(flags: &[&str], after: &PoolRequest) {
        let request = parse_args::<PoolSetArgs>(&[&["gpu"], flags].concat()).apply(before()).unwrap();
        let json = |request: &PoolRequest| serde_json::to_value(request).unwrap();
        assert_eq!(json(&request), json(after), "{flags:?}");
    }

    /// Requirement R7.
    #[test]
    fn an_unnamed_pool_setting_is_unchanged() {
        check(&[], &before());
        check(&["--slots", "3"], &PoolRequest { slots: 3, ..before() });
        let members = vec![member("a=b").unwrap(), member("c=d:preloaded").unwrap()];
        check(&["--member", "a=b", "--member", "c=d:preloaded"], &PoolRequest { members, ..before() });
        let handler = Some(HandlerSettings { path: Some("/v2".into()), timeout_s: Some(9), at_once: Some(3) });
        check(&["--path", "/v2"], &PoolRequest { handler, ..before() });
        check(&["--unset", "memory_mb"], &PoolRequest { memory_mb: None, ..before() });
    }

    #[test]
    fn a_member_has_an_affinity_and_a_runtime() {
        assert!(member("llama").is_err());
        let stays = |text: &str| member(text).unwrap().stay;
        assert_eq!((stays("a=b"), stays("a=b:pinned")), (None, Some("pinned".into())));
    }
}
