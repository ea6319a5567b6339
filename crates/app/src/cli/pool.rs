//! `windlass pool`: runtimes that take turns in a few slots (R7).

use clap::{Args, Subcommand};
use client::Client;
use serde_json::json;
use wire::{HandlerSettings, MemberSettings, PlacementSettings, PoolRequest, PoolView};

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
    /// Declare a pool, or change it.
    Set(Box<SetArgs>),
    /// Take a pool away; its runtimes stay as they are.
    Delete { name: String },
}

#[derive(Args)]
pub(crate) struct SetArgs {
    name: String,
    /// Runtimes that may be up at once.
    #[arg(long, value_name = "N", default_value_t = 1)]
    slots: u32,
    /// What the runtimes that are up may take together.
    #[arg(long, value_name = "MB")]
    memory_mb: Option<i64>,
    /// AFFINITY=RUNTIME, with :preloaded or :pinned after it where it should be. May be given again.
    #[arg(long = "member", value_name = "AFFINITY=RUNTIME", required = true)]
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
    /// A label that the node which runs it must have: NAME=VALUE. May be given again.
    #[arg(long = "placement", value_name = "NAME=VALUE")]
    placement: Vec<String>,
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

async fn set(client: &Client, args: SetArgs) -> anyhow::Result<PoolView> {
    let member = |text: &String| {
        let usage = || UsageError(format!("--member takes AFFINITY=RUNTIME, not `{text}`"));
        let (affinity, rest) = text.rsplit_once('=').ok_or_else(usage)?;
        let (runtime, stay) = match rest.split_once(':') {
            Some((runtime, stay)) => (runtime, Some(stay.to_owned())),
            None => (rest, None),
        };
        Ok(MemberSettings { affinity: affinity.to_owned(), runtime: runtime.to_owned(), stay })
    };
    let request = PoolRequest {
        slots: args.slots,
        memory_mb: args.memory_mb,
        members: args.members.iter().map(member).collect::<Result<_, UsageError>>()?,
        queue: args.queue,
        starvation_s: args.starvation_s,
        idle_stop_s: args.idle_stop_s,
        handler: Some(HandlerSettings { path: args.path, timeout_s: args.timeout_s, at_once: args.at_once }),
        placement: Some(PlacementSettings { labels: labels("--placement", &args.placement)? }),
    };
    Ok(client.set_pool(&args.name, &request).await?)
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
