//! `windlass pool`: runtimes that take turns in a few slots (R7).

use clap::{Args, Subcommand, ValueEnum};
use client::Client;
use serde_json::json;
use wire::{HandlerSettings, MemberSettings, MemberView, PlacementSettings, PoolRequest, PoolView};

use super::drive::labels;
use super::exit::{Exit, UsageError};
use super::list;
use super::output::{self, Details, Listing, Output, cell, relative_maybe};

#[derive(Subcommand)]
pub(crate) enum Verb {
    /// List pools with their figures.
    List,
    /// Show a pool: what is up, who waits, what was saved.
    Status { name: String },
    /// Declare a pool, or change what is named of one.
    Set(Box<SetArgs>),
    /// Take a pool away; its runtimes stay as they are.
    Delete { name: String },
}

#[derive(Args)]
pub(crate) struct SetArgs {
    name: String,
    /// Runtimes that may be up at once; 1 unless set.
    #[arg(long, value_name = "N")]
    slots: Option<u32>,
    /// What the runtimes that are up may take together.
    #[arg(long, value_name = "MB")]
    memory_mb: Option<i64>,
    /// AFFINITY=RUNTIME, with :preloaded or :pinned after it where it should be. May be given again; all that the pool shall
    /// have.
    #[arg(long = "member", value_name = "AFFINITY=RUNTIME")]
    members: Vec<String>,
    /// Whose jobs it runs; the queue of the pool's own name, unless given.
    #[arg(long)]
    queue: Option<String>,
    /// How long other affinities may be passed over.
    #[arg(long, value_name = "SECONDS")]
    starvation_s: Option<i64>,
    /// Stop a runtime that has had nothing to do for so long.
    #[arg(long, value_name = "SECONDS")]
    idle_stop_s: Option<i64>,
    /// Where on the runtime's endpoint a job's payload is posted.
    #[arg(long, value_name = "PATH")]
    path: Option<String>,
    /// How long a job may take there.
    #[arg(long, value_name = "SECONDS")]
    timeout_s: Option<i64>,
    /// Jobs that one slot has under way.
    #[arg(long, value_name = "N")]
    at_once: Option<u32>,
    /// A label that the node which runs it must have: NAME=VALUE. May be given again; all that it must have.
    #[arg(long = "placement", value_name = "NAME=VALUE")]
    placement: Vec<String>,
    /// Put a setting back to its default.
    #[arg(long, value_enum, value_name = "SETTING")]
    unset: Vec<Setting>,
}

#[derive(Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Setting {
    MemoryMb,
    StarvationS,
    IdleStopS,
    Placement,
}

impl SetArgs {
    /// The settings with what was named here changed.
    fn over(self, mut before: PoolRequest) -> Result<PoolRequest, UsageError> {
        for setting in &self.unset {
            match setting {
                Setting::MemoryMb => before.memory_mb = None,
                Setting::StarvationS => before.starvation_s = None,
                Setting::IdleStopS => before.idle_stop_s = None,
                Setting::Placement => before.placement = None,
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
    let usage = || UsageError(format!("--member takes AFFINITY=RUNTIME, not `{text}`"));
    let (affinity, rest) = text.rsplit_once('=').ok_or_else(usage)?;
    let (runtime, stay) = match rest.split_once(':') {
        Some((runtime, stay)) => (runtime, Some(stay.to_owned())),
        None => (rest, None),
    };
    Ok(MemberSettings { affinity: affinity.to_owned(), runtime: runtime.to_owned(), stay })
}

/// A pool as it would be declared to be what it is.
fn declared(pool: PoolView) -> PoolRequest {
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

pub(super) async fn run(client: &Client, verb: Verb, format: Output) -> anyhow::Result<Exit> {
    let pool = match verb {
        Verb::List => return list(client, format).await,
        Verb::Delete { name } => {
            client.delete_pool(&name).await?;
            output::done(format, &format!("Pool {name} was taken away."), &json!({"name": name, "deleted": true}))?;
            return Ok(Exit::Done);
        }
        Verb::Status { name } => client.pool(&name).await?,
        Verb::Set(args) => set(client, *args).await?,
    };
    match format {
        Output::Json => output::json(&pool)?,
        Output::Table => show(&pool)?,
    }
    Ok(Exit::Done)
}

/// The route replaces everything, and a person means what is named: so the present settings are read first.
async fn set(client: &Client, args: SetArgs) -> anyhow::Result<PoolView> {
    let name = args.name.clone();
    let before = match client.pool(&name).await {
        Ok(pool) => declared(pool),
        Err(error) if error.status() == Some(404) => PoolRequest { slots: 1, ..PoolRequest::default() },
        Err(error) => return Err(error.into()),
    };
    let request = args.over(before)?;
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
        "There are no pools yet.",
        ["NAME", "SLOTS", "UP", "WAITING", "SWAPS", "AVOIDED", "SAVED"],
        |pool| {
            let up: Vec<&str> = pool
                .members
                .iter()
                .filter(|member| member.state == "loaded")
                .map(|member| member.affinity.as_str())
                .collect();
            [
                cell(&pool.name),
                cell(pool.slots),
                cell(up.join(", ")),
                cell(pool.members.iter().map(|member| member.waiting).sum::<i64>()),
                cell(pool.swaps_made),
                cell(pool.swaps_avoided),
                cell(format!("{:.1} min", pool.minutes_saved)),
            ]
        },
    )?;
    Ok(Exit::Done)
}

fn show(pool: &PoolView) -> anyhow::Result<()> {
    let mut details = Details::new();
    details
        .text("pool", &pool.name)
        .text("queue", &pool.queue)
        .text("slots", pool.slots)
        .maybe("memory", pool.memory_mb.map(|mb| format!("{mb} MB")))
        .maybe("node", pool.node.as_ref())
        .maybe("placement", Some(super::runtime::written(&pool.placement).join(" ")).filter(|text| !text.is_empty()))
        .text("swaps made", pool.swaps_made)
        .text("swaps avoided", pool.swaps_avoided)
        .maybe("a swap takes", pool.load_s.map(|seconds| format!("{seconds:.1} s")))
        .text("saved", format!("{:.1} min", pool.minutes_saved))
        .maybe("longest wait for a swap", pool.starvation_clock_s.map(|seconds| format!("{seconds:.0} s")))
        .maybe("at most", pool.starvation_s.map(|seconds| format!("{seconds} s")));
    details.print()?;
    let mut listing =
        Listing::new(&["AFFINITY", "RUNTIME", "STATE", "STAY", "WAITING", "OLDEST", "LEFT ALONE BECAUSE"]);
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
    use crate::cli::tests::typed;

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
        let request = typed::<SetArgs>(&[&["gpu"], flags].concat()).over(before()).unwrap();
        let json = |request: &PoolRequest| serde_json::to_value(request).unwrap();
        assert_eq!(json(&request), json(after), "{flags:?}");
    }

    #[test]
    fn r7_what_is_not_named_of_a_pool_stays() {
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
