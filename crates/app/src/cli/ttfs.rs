//! `windlass ttfs`: how long people wait for a first signal (S4, S5). The command line sends its own events.

use std::time::{Duration, Instant};

use clap::{Subcommand, ValueEnum};
use client::{Client, ToldSignal};
use std::collections::BTreeMap;
use uuid::Uuid;
use wire::TtfsEvent;

use super::exit::Exit;
use super::output::{self, Listing, Output, cell, spark};

/// Telling how long it took must not take long.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Subcommand)]
pub(crate) enum Verb {
    /// Report how long people waited, with a small chart for each surface.
    Report {
        #[arg(long, value_enum, default_value_t = By::Hour)]
        by: By,
    },
    /// Show the targets, how well they are kept, and the alerts that hold.
    Slo,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum By {
    Hour,
    Day,
}

pub(super) async fn run(client: &Client, verb: Verb, format: Output) -> anyhow::Result<Exit> {
    match verb {
        Verb::Report { by } => report(client, by, format).await,
        Verb::Slo => slo(client, format).await,
    }
}

async fn report(client: &Client, by: By, format: Output) -> anyhow::Result<Exit> {
    let page = client.ttfs_summary(if by == By::Hour { "hour" } else { "day" }).await?;
    if format == Output::Json {
        output::json(&page)?;
        return Ok(Exit::Done);
    }
    if page.items.is_empty() {
        output::note("Nobody has waited for a signal yet.");
        return Ok(Exit::Done);
    }
    let mut listing =
        Listing::new(&["AT", "SURFACE", "KEPT", "EVENTS", "P50", "P95", "P99", "MAX", "OVER 2 S", "ERRORS"]);
    let ms = |ms: Option<i64>| ms.map(|ms| format!("{ms} ms")).unwrap_or_default();
    for item in &page.items {
        let kept = match item.cache_hit {
            Some(true) => "yes".to_owned(),
            Some(false) => "no".to_owned(),
            None => format!("{:.0} %", item.cache_hit_rate * 100.0),
        };
        listing.row([
            cell(format!("{:.0}", item.at)),
            cell(&item.surface),
            cell(kept),
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

/// Measures one wait for a first signal and tells the server of it, once.
pub(super) struct FirstSignal {
    client: Client,
    job: Uuid,
    began: Instant,
    told: bool,
}

impl FirstSignal {
    pub(super) fn start(client: &Client, job: Uuid) -> Self {
        Self { client: client.clone(), job, began: Instant::now(), told: false }
    }

    /// The first signal is on the screen.
    pub(super) async fn rendered(&mut self, told: &ToldSignal) {
        if std::mem::replace(&mut self.told, true) {
            return;
        }
        let event = TtfsEvent {
            ttfs_ms: Some(self.began.elapsed().as_millis() as i64),
            cache_hit: Some(told.cache_hit),
            signal_source: told.source.clone(),
            kind: Some(told.signal.kind.clone()),
            phase: Some(told.signal.phase.clone()),
            run: told.signal.run.clone(),
            ..self.event("signal.rendered")
        };
        self.send(event).await;
    }

    /// No signal came, because the server did not answer as it should.
    pub(super) async fn failed(&mut self, error: &client::ClientError) {
        if std::mem::replace(&mut self.told, true) {
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
            release: Some(env!("CARGO_PKG_VERSION").into()),
            ..TtfsEvent::default()
        }
    }

    /// Nothing depends on it: what cannot be told is not told.
    async fn send(&self, event: TtfsEvent) {
        let _untold = tokio::time::timeout(PATIENCE, self.client.record_ttfs(vec![event])).await;
    }
}

/// A build server is not a person at a terminal.
#[expect(clippy::disallowed_methods, reason = "every build server sets CI, and none passes it as a flag")]
fn surface() -> &'static str {
    match std::env::var_os("CI") {
        Some(ci) if !ci.is_empty() && ci != "false" => "ci",
        _ => "cli",
    }
}
