//! What ended recently in a queue or of a kind: throughput, latencies and figures by kind or queue.

use wire::JobView;

use crate::chart::ThroughputPoint;
use crate::html;
use crate::latency::LatencyPoint;

/// The periods that a reader can select: the value in the address, and minutes.
pub const RANGES: [(&str, i64); 4] = [("15m", 15), ("1h", 60), ("6h", 360), ("24h", 1_440)];

/// Figures of one period.
#[derive(Clone, Debug, Default)]
pub struct Activity {
    /// The selected period, one of `RANGES`.
    pub range: &'static str,
    /// Length of an interval of the charts in minutes.
    pub interval_minutes: i64,
    /// Empty for a kind: the throughput of kinds is not recorded.
    pub throughput: Vec<ThroughputPoint>,
    /// Live jobs at the end of each interval.
    pub depth: Vec<i64>,
    pub wait: Vec<LatencyPoint>,
    pub run: Vec<LatencyPoint>,
    pub groups: Vec<ActivityGroup>,
    /// Number of ended jobs that the latencies are computed from.
    pub samples: i64,
    /// More jobs ended in the period than were read.
    pub is_partial: bool,
    /// Failed jobs, newest first.
    pub failed: Vec<JobView>,
}

/// The ended jobs of one kind of a queue, or of one queue of a kind.
#[derive(Clone, Debug, Default)]
pub struct ActivityGroup {
    pub name: String,
    pub ended: i64,
    pub failed: i64,
    pub wait_s: Option<(f64, f64)>,
    pub run_s: Option<(f64, f64)>,
}

impl ActivityGroup {
    fn quantiles(figures: &Option<(f64, f64)>) -> String {
        figures.map_or_else(|| "–".into(), |(p50, p95)| format!("{} / {}", html::seconds(p50), html::seconds(p95)))
    }

    pub(crate) fn wait(&self) -> String {
        Self::quantiles(&self.wait_s)
    }

    pub(crate) fn run(&self) -> String {
        Self::quantiles(&self.run_s)
    }

    pub(crate) fn failed_pct(&self) -> String {
        if self.ended == 0 { "–".into() } else { format!("{:.1} %", self.failed as f64 * 100.0 / self.ended as f64) }
    }
}

impl Activity {
    pub(crate) fn ranges(&self) -> [&'static str; 4] {
        RANGES.map(|(name, _)| name)
    }

    pub(crate) fn is_selected(&self, range: &str) -> bool {
        self.range == range
    }

    pub(crate) fn interval(&self) -> String {
        if self.interval_minutes == 1 { "minute".into() } else { format!("{} minutes", self.interval_minutes) }
    }

    pub(crate) fn depth_label(&self) -> String {
        let last = self.depth.last().copied().unwrap_or(0);
        format!("Live jobs in this period, now {}", html::count(&last))
    }
}

/// The failed job's message in one line.
pub(crate) fn failure(job: &JobView) -> html::Markup {
    job.error.as_ref().map_or_else(html::none, |error| html::prose(html::first_line(&error.message)))
}

pub(crate) fn code(job: &JobView) -> &str {
    job.error.as_ref().map_or("", |error| error.code.as_str())
}

pub(crate) fn ended(job: &JobView) -> html::Markup {
    html::opt_ago(&job.finished_at)
}
