//! `windlass ttfs`: reports the time to first signal (TTFS), and measures it for the command line itself.

use std::time::{Duration, Instant};

use clap::{Args, Subcommand, ValueEnum};
use client::{Client, SignalResponse};
use domain::queue::settings::PHASES;
use std::collections::BTreeMap;
use uuid::Uuid;
use wire::TtfsEvent;

use crate::cli::exit::Exit;
use crate::cli::id_argument::IdArgument;
use crate::cli::output;
use crate::cli::output::{Listing, Output, cell, spark};

/// Maximum time for reporting a measurement, so that it does not delay the command.
const REPORT_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Subcommand)]
pub(crate) enum TtfsVerb {
    /// Report the time to first signal, with a chart for each surface
    Report {
        #[arg(long, value_enum, default_value_t = TtfsBucket::Hour)]
        by: TtfsBucket,
    },
    /// Show compliance with the targets per hour, and active alerts
    Slo,
    /// List single events, newest first
    Events(EventsArgs),
}

#[derive(Args)]
pub(crate) struct EventsArgs {
    /// Only events of this job
    #[arg(long, value_name = "ID")]
    job: Option<IdArgument>,
    /// Only events with this error code
    #[arg(long, value_name = "CODE")]
    error_code: Option<String>,
    /// At this time or later, for example 2026-11-19T14:00:00Z
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Continue from the cursor of the previous page
    #[arg(long)]
    cursor: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TtfsBucket {
    Hour,
    Day,
}

pub(crate) async fn run(client: &Client, verb: TtfsVerb, format: Output) -> anyhow::Result<Exit> {
    match verb {
        TtfsVerb::Report { by } => report(client, by, format).await,
        TtfsVerb::Slo => slo(client, format).await,
        TtfsVerb::Events(args) => events(client, args, format).await,
    }
}

async fn events(client: &Client, args: EventsArgs, format: Output) -> anyhow::Result<Exit> {
    let EventsArgs { job, error_code, since, cursor } = args;
    let job = match job {
        Some(job) => Some(job.job(client).await?),
        None => None,
    };
    let parameters =
        [("job_id", job.map(|job| job.to_string())), ("error_code", error_code), ("since", since), ("cursor", cursor)];
    let query: Vec<_> = parameters.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
    let page = client.ttfs_events(&query).await?;
    if format == Output::Json {
        output::json(&page)?;
        return Ok(Exit::Done);
    }
    if page.items.is_empty() {
        output::note("No events.");
        return Ok(Exit::Done);
    }
    let mut listing = Listing::new(&["AT", "SURFACE", "EVENT", "MS", "JOB", "ERROR"]);
    for event in &page.items {
        listing.row([
            cell(event.at.map(|at| format!("{at:.3}")).unwrap_or_default()),
            cell(&event.surface),
            cell(&event.event_type),
            cell(event.ttfs_ms),
            cell(event.job_id.map(|job| job.to_string()).unwrap_or_default()),
            cell(event.error_code.as_deref().unwrap_or_default()),
        ]);
    }
    listing.print()?;
    if let Some(cursor) = &page.next_cursor {
        output::note(&format!("More results: --cursor {cursor}"));
    }
    Ok(Exit::Done)
}

async fn report(client: &Client, by: TtfsBucket, format: Output) -> anyhow::Result<Exit> {
    let page = client.ttfs_summary(if by == TtfsBucket::Hour { "hour" } else { "day" }).await?;
    if format == Output::Json {
        output::json(&page)?;
        return Ok(Exit::Done);
    }
    if page.items.is_empty() {
        output::note("No measurements yet.");
        return Ok(Exit::Done);
    }
    let mut listing =
        Listing::new(&["AT", "SURFACE", "CACHE HIT", "EVENTS", "P50", "P95", "P99", "MAX", "OVER 2 S", "ERRORS"]);
    let ms = |ms: Option<i64>| ms.map(|ms| format!("{ms} ms")).unwrap_or_default();
    for item in &page.items {
        let cache_hit = match item.cache_hit {
            Some(true) => "yes".to_owned(),
            Some(false) => "no".to_owned(),
            None => format!("{:.0} %", item.cache_hit_rate * 100.0),
        };
        listing.row([
            cell(format!("{:.0}", item.at)),
            cell(&item.surface),
            cell(cache_hit),
            cell(item.event_count),
            cell(ms(item.p50_ms)),
            cell(ms(item.p95_ms)),
            cell(ms(item.p99_ms)),
            cell(ms(item.max_ms)),
            cell(item.over_p50_slo),
            cell(item.error_count),
        ]);
    }
    listing.print()?;
    let mut charts: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    for item in page.items.iter().rev() {
        charts.entry(&item.surface).or_default().push(item.p95_ms.unwrap_or(0));
    }
    output::line("")?;
    for (surface, p95) in charts {
        output::line(&format!("{surface:<4} P95  {}", spark(&p95)))?;
    }
    Ok(Exit::Done)
}

async fn slo(client: &Client, format: Output) -> anyhow::Result<Exit> {
    let slo = client.ttfs_slo().await?;
    if format == Output::Json {
        output::json(&slo)?;
        return Ok(Exit::Done);
    }
    let mut listing = Listing::new(&["AT", "SURFACE", "SIGNALS", "OVER 2 S", "OVER 5 S", "WITHIN 2 S", "WITHIN 5 S"]);
    for hour in &slo.items {
        listing.row([
            cell(format!("{:.0}", hour.at)),
            cell(&hour.surface),
            cell(hour.total_signals),
            cell(hour.p50_breaches),
            cell(hour.p95_breaches),
            cell(format!("{:.2} %", hour.p50_compliance_pct)),
            cell(format!("{:.2} %", hour.p95_compliance_pct)),
        ]);
    }
    listing.print()?;
    for alert in &slo.alerts {
        output::line(&format!("ALERT {} on {}: {}", alert.alert, alert.surface, alert.detail))?;
    }
    Ok(Exit::Done)
}

/// Measures the time to the first signal of one job and reports it once.
pub(crate) struct FirstSignal {
    client: Client,
    job: Uuid,
    began: Instant,
    reported: bool,
}

impl FirstSignal {
    pub(crate) fn start(client: &Client, job: Uuid) -> Self {
        Self { client: client.clone(), job, began: Instant::now(), reported: false }
    }

    /// Reports that the first signal is on the screen.
    pub(crate) async fn rendered(&mut self, response: &SignalResponse) {
        if std::mem::replace(&mut self.reported, true) {
            return;
        }
        let event = TtfsEvent {
            cache_hit: Some(response.cache_hit),
            signal_source: response.source.clone(),
            kind: Some(response.signal.kind.clone()),
            phase: Some(known_phase(&response.signal.phase).to_owned()),
            run: response.signal.run.clone(),
            ..self.event("signal.rendered")
        };
        self.send(event).await;
    }

    /// Reports that no signal arrived because of an error.
    pub(crate) async fn failed(&mut self, error: &client::ClientError) {
        if std::mem::replace(&mut self.reported, true) {
            return;
        }
        let event = TtfsEvent { error_message: Some(error.to_string()), ..self.event("signal.error") };
        self.send(event).await;
    }

    fn event(&self, event_type: &str) -> TtfsEvent {
        TtfsEvent {
            job_id: Some(self.job),
            surface: surface().into(),
            event_type: event_type.into(),
            ttfs_ms: self.began.elapsed().as_millis() as i64,
            release: Some(env!("CARGO_PKG_VERSION").into()),
            ..TtfsEvent::default()
        }
    }

    /// Sends the event. Failures are ignored, because nothing depends on it.
    async fn send(&self, event: TtfsEvent) {
        let _ignored = tokio::time::timeout(REPORT_TIMEOUT, self.client.record_ttfs(vec![event])).await;
    }
}

/// Events know the built-in phases only.
fn known_phase(phase: &str) -> &str {
    if PHASES.contains(&phase) { phase } else { "unknown" }
}

/// Build servers are a surface of their own: no person waits there.
#[expect(clippy::disallowed_methods, reason = "every build server sets CI, and none passes it as a flag")]
fn surface() -> &'static str {
    match std::env::var_os("CI") {
        Some(ci) if !ci.is_empty() && ci != "false" => "ci",
        _ => "cli",
    }
}
