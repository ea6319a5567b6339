//! The text of one view of `windlass top`, cut to the size of the terminal.

use wire::{JobView, QueueView, WorkerView};

use super::{JobAction, QueueSamples, View};
use crate::cli::output::{clean, relative, span, spark};

/// Rows of workers that a view shows.
const WORKERS: usize = 6;
/// Rows that each section needs at least.
const MIN_ROWS: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    Plain,
    Title,
    Header,
    Selected,
    Alert,
}

#[derive(Debug)]
pub(super) struct Line {
    pub(super) text: String,
    pub(super) style: Style,
}

/// The lines of a view, at most `height`, each at most `width` characters long.
pub(super) fn frame(view: &View, width: u16, height: u16) -> Vec<Line> {
    let (width, height) = (usize::from(width), usize::from(height));
    let snapshot = &view.snapshot;
    let mut lines = vec![line(Style::Title, title(view))];
    let workers = snapshot.workers.len().min(WORKERS);
    // Queues and jobs share what the title, the headers, the workers and the last line leave.
    let rest = height.saturating_sub(workers + 8);
    let jobs = snapshot.jobs().count();
    let queues = snapshot.queues.len().min((rest / 2).max(rest.saturating_sub(jobs)).max(MIN_ROWS));
    let jobs = jobs.min(rest.saturating_sub(queues).max(MIN_ROWS));

    lines.push(line(Style::Plain, String::new()));
    lines.push(line(Style::Header, queue_row(["QUEUE", "STATE", "WAIT", "RUN", "OK", "FAIL", "ENDED", "DEPTH"])));
    let mut sorted: Vec<&QueueView> = snapshot.queues.iter().collect();
    sorted.sort_by_key(|queue| std::cmp::Reverse((queue.counts.running, queue.counts.queued)));
    for queue in sorted.into_iter().take(queues) {
        lines.push(line(if queue.paused { Style::Alert } else { Style::Plain }, queue_line(queue, view)));
    }
    lines.push(line(Style::Header, worker_row(["WORKER", "STATE", "JOBS", "QUEUES", "LAST CLAIM"])));
    lines.extend(snapshot.workers.iter().take(workers).map(|worker| line(Style::Plain, worker_line(worker))));
    lines.push(line(Style::Header, job_row(["JOB", "STATE", "KIND", "QUEUE", "SINCE", "NOTE"])));
    // The selected job stays visible.
    let first = (view.selected + 1).saturating_sub(jobs);
    for (place, job) in snapshot.jobs().enumerate().skip(first).take(jobs) {
        let style = match (place == view.selected, job.state.as_str()) {
            (true, _) => Style::Selected,
            (false, "failed") => Style::Alert,
            _ => Style::Plain,
        };
        lines.push(line(style, job_line(job)));
    }
    lines.truncate(height.saturating_sub(1));
    lines.push(line(Style::Plain, footer(view)));
    for line in &mut lines {
        line.text = line.text.chars().take(width).collect();
    }
    lines
}

fn line(style: Style, text: String) -> Line {
    Line { text: clean(&text).replace(['\n', '\t'], " "), style }
}

fn title(view: &View) -> String {
    let snapshot = &view.snapshot;
    let sum = |count: fn(&QueueView) -> i64| snapshot.queues.iter().map(count).sum::<i64>();
    let waiting = sum(|queue| queue.counts.queued + queue.counts.scheduled + queue.counts.waiting);
    let (running, failed) = (sum(|queue| queue.counts.running), sum(|queue| queue.counts.failed));
    let (queues, workers) = (snapshot.queues.len(), snapshot.workers.len());
    format!("Windlass  {queues} queues  {workers} workers  {waiting} waiting  {running} running  {failed} failed")
}

fn footer(view: &View) -> String {
    let action = match view.asked {
        Some(JobAction::Cancel) => "Cancel the selected job? y to confirm",
        Some(JobAction::Retry) => "Retry the selected job? y to confirm",
        None if view.message.is_empty() => "q quit  ↑↓ select  c cancel  r retry",
        None => view.message.as_str(),
    };
    action.to_owned()
}

fn queue_row(cells: [&str; 8]) -> String {
    let [name, state, waiting, running, ok, failed, ended, depth] = cells;
    format!("{name:<28} {state:<7} {waiting:>7} {running:>6} {ok:>9} {failed:>7}  {ended:<30} {depth}")
}

fn queue_line(queue: &QueueView, view: &View) -> String {
    let counts = queue.counts;
    let spark_of =
        |samples: fn(&QueueSamples) -> Vec<i64>| view.samples.get(&queue.name).map(samples).unwrap_or_default();
    let ended = spark(&spark_of(|samples| samples.ended.iter().copied().collect()));
    let depth = spark(&spark_of(|samples| samples.waiting.iter().copied().collect()));
    let state = if queue.paused { "paused" } else { "active" };
    queue_row([
        &short(&queue.name, 28),
        state,
        &(counts.queued + counts.scheduled + counts.waiting).to_string(),
        &counts.running.to_string(),
        &counts.succeeded.to_string(),
        &counts.failed.to_string(),
        &ended,
        &depth,
    ])
}

fn worker_row(cells: [&str; 5]) -> String {
    let [name, state, jobs, queues, last] = cells;
    format!("{name:<28} {state:<9} {jobs:>5}  {queues:<40} {last}")
}

fn worker_line(worker: &WorkerView) -> String {
    let state = if worker.draining { "draining" } else { "active" };
    let last = worker.last_claim_at.map(relative).unwrap_or_default();
    let queues = short(&worker.queues.join(", "), 40);
    worker_row([&short(&worker.name, 28), state, &worker.claims.to_string(), &queues, &last])
}

fn job_row(cells: [&str; 6]) -> String {
    let [id, state, kind, queue, since, note] = cells;
    format!("{id:<36} {state:<8} {kind:<18} {queue:<18} {since:<10} {note}")
}

fn job_line(job: &JobView) -> String {
    let since = job.finished_at.map(relative);
    let since = since.or(job.started_at.map(|at| span(jiff::Timestamp::now().duration_since(at)))).unwrap_or_default();
    let note = match &job.error {
        Some(error) if job.state == "failed" => format!("{}: {}", error.code, error.message),
        _ => {
            let phase = job.phase.clone().unwrap_or_default();
            let progress = job.progress.map(|share| format!(" {:.0} %", share * 100.0)).unwrap_or_default();
            format!("{phase}{progress}")
        }
    };
    let (kind, queue) = (short(&job.kind, 18), short(&job.queue, 18));
    job_row([&job.id.to_string(), &job.state, &kind, &queue, &since, &note])
}

fn short(text: &str, width: usize) -> String {
    match text.chars().count() {
        length if length <= width => text.to_owned(),
        _ => text.chars().take(width - 1).chain(['…']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{Snapshot, View};
    use super::*;

    fn queue(name: &str, running: i64, succeeded: i64) -> QueueView {
        let counts = json!({"waiting": 0, "scheduled": 1, "queued": 2, "running": running, "succeeded": succeeded,
                            "failed": 0, "canceled": 0});
        let queue = json!({"name": name, "paused": false, "paused_reason": null, "paused_by": null, "paused_at": null,
                           "settings": {}, "counts": counts, "oldest_waiting_at": null, "swaps_made": 0,
                           "swaps_avoided": 0});
        serde_json::from_str(&queue.to_string()).unwrap()
    }

    fn snapshot(succeeded: i64) -> Snapshot {
        let queues = (0..40).map(|place| queue(&format!("queue-{place}"), place, succeeded)).collect();
        Snapshot { at: jiff::Timestamp::UNIX_EPOCH, queues, workers: vec![], running: vec![], failed: vec![] }
    }

    #[test]
    fn a_view_fits_the_terminal_and_begins_with_the_busiest_queue() {
        for (width, height) in [(80, 24), (200, 60), (20, 5), (1, 1)] {
            let lines = frame(&View::new(snapshot(0)), width, height);
            assert!(lines.len() <= usize::from(height), "{height}: {}", lines.len());
            assert!(lines.iter().all(|line| line.text.chars().count() <= usize::from(width)));
        }
        let lines = frame(&View::new(snapshot(0)), 100, 30);
        assert!(lines[0].text.contains("40 queues") && lines[0].text.contains("120 waiting"), "{lines:?}");
        assert!(lines[3].text.starts_with("queue-39"), "{lines:?}");
    }

    #[test]
    fn a_sparkline_shows_the_jobs_that_ended_between_updates() {
        let mut view = View::new(snapshot(10));
        view.update(Ok(snapshot(10)));
        view.update(Ok(snapshot(18)));
        let lines = frame(&view, 120, 30);
        assert!(lines[3].text.contains("··█"), "{lines:?}");
        for _ in 0..100 {
            view.update(Ok(snapshot(18)));
        }
        assert!(view.samples.values().all(|samples| samples.ended.len() == super::super::SAMPLES), "bounded");
    }

    #[test]
    fn a_name_cannot_control_the_terminal() {
        let mut shown = snapshot(0);
        shown.queues[39].name = "a\u{1b}[2J\nb".into();
        let lines = frame(&View::new(shown), 80, 24);
        assert!(lines.iter().all(|line| !line.text.contains(char::is_control)), "{lines:?}");
    }
}
