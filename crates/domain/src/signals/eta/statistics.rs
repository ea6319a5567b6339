//! Everything that estimates of one kind of work with one affinity are computed from.

use crate::signals::eta::arrivals::BurstSize;
use crate::signals::eta::calibration::{Answer, Calibration, Horizon};
use crate::signals::eta::durations::{DurationHistory, Durations, MIN_SAMPLES, MIN_SAMPLES_WITH_KIN};
use crate::signals::eta::line::{Forecast, RUNS, RunningWork, running_forecast, scheduled_forecast};
use crate::signals::eta::progress::{Progress, ProgressCurve};
use crate::signals::eta::retries::{AttemptShares, RetryForecast};
use crate::signals::eta::turnaround::Turnaround;

/// What is learned from ended jobs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkHistory {
    pub run: DurationHistory,
    pub load: DurationHistory,
    pub wait: DurationHistory,
    pub attempts: AttemptShares,
    pub progress: ProgressCurve,
    pub bursts: BurstSize,
    pub turnaround: Turnaround,
    pub calibration: Calibration,
}

/// A job that has ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EndedWork {
    /// Time of the last attempt, without loading.
    pub run_s: f64,
    pub load_s: Option<f64>,
    pub wait_s: f64,
    /// Time from the end of its worker's previous job to its start, if it waited at that end.
    pub turnaround_s: Option<f64>,
    /// It did not arrive together with the job of its lane that ended before it.
    pub begins_burst: bool,
    pub attempt: u32,
    /// No further attempt was permitted.
    pub was_last_permitted: bool,
    pub was_canceled: bool,
    /// Reports of the last attempt.
    pub progress: Vec<Progress>,
    /// The answers that were given for it, with the time from the answer to the end.
    pub answers: Vec<(Answer, f64)>,
}

impl WorkHistory {
    pub fn observe(&mut self, ended: &EndedWork) {
        self.bursts.observe(ended.begins_burst);
        if ended.was_canceled {
            return;
        }
        // The history before this job is what its answers were based on.
        let durations = self.run.durations();
        for report in &ended.progress {
            let by_history_s = durations.as_ref().map(|run| run.remaining(report.elapsed_s, 0.5));
            self.progress.observe(*report, ended.run_s, by_history_s);
        }
        self.run.add(ended.run_s);
        self.wait.add(ended.wait_s);
        if let Some(load_s) = ended.load_s.filter(|load_s| *load_s > 0.0) {
            self.load.add(load_s);
        }
        if let Some(turnaround_s) = ended.turnaround_s {
            self.turnaround.observe(turnaround_s, ended.run_s);
        }
        self.attempts.observe(ended.attempt, ended.was_last_permitted);
        for (answer, took_s) in &ended.answers {
            self.calibration.score(answer, *took_s);
        }
    }

    /// True if other affinities of the kind would add to the statistics.
    pub fn needs_kin(&self) -> bool {
        self.run.sketch.weight() < MIN_SAMPLES || self.load.sketch.weight() < MIN_SAMPLES_WITH_KIN
    }

    /// The statistics, completed by the histories of other affinities of the same kind.
    pub fn statistics_with(&self, kin: &[Self]) -> Statistics {
        let all = |of: fn(&Self) -> &DurationHistory, least: f64| -> Vec<Durations> {
            kin.iter().filter_map(|one| of(one).durations_from(least)).collect()
        };
        let mut statistics = self.statistics();
        if self.turnaround.weight < MIN_SAMPLES {
            let together = kin.iter().fold(self.turnaround, |sum, one| sum.with(one.turnaround));
            statistics.turnaround_s = together.mean_s();
        }
        let mut loads = all(|one| &one.load, 1.0);
        if self.load.sketch.weight() < MIN_SAMPLES_WITH_KIN && !loads.is_empty() {
            loads.extend(statistics.load);
            statistics.load = Durations::borrow_from(&loads);
        }
        if statistics.run.is_none() {
            let runs = all(|one| &one.run, MIN_SAMPLES);
            if !runs.is_empty() {
                statistics.run =
                    self.run.durations_from(MIN_SAMPLES_WITH_KIN).or_else(|| Durations::borrow_from(&runs));
            }
            statistics.wait = statistics.wait.or_else(|| Durations::borrow_from(&all(|one| &one.wait, MIN_SAMPLES)));
        }
        statistics
    }

    pub fn statistics(&self) -> Statistics {
        Statistics {
            run: self.run.durations(),
            // Loads are rare: a model may be loaded once for thousands of jobs. A swap without a cost would be wrong.
            load: self.load.durations_from(1.0),
            wait: self.wait.durations(),
            attempts: self.attempts,
            progress: self.progress.clone(),
            bursts: self.bursts,
            turnaround_s: self.turnaround.mean_s(),
            calibration: self.calibration.clone(),
            samples: self.run.sketch.weight(),
        }
    }
}

/// The history in the form that forecasts read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Statistics {
    pub run: Option<Durations>,
    pub load: Option<Durations>,
    pub wait: Option<Durations>,
    pub attempts: AttemptShares,
    pub progress: ProgressCurve,
    pub bursts: BurstSize,
    pub turnaround_s: f64,
    pub calibration: Calibration,
    /// Weight of the samples, which decays with time.
    pub samples: f64,
}

impl Statistics {
    /// The answer for a running job. `None` without a history.
    pub fn answer_running(
        &self,
        elapsed_s: f64,
        is_loading: bool,
        progress: Option<Progress>,
        retries: &RetryForecast,
        seed: u64,
    ) -> Option<Answer> {
        let work = self.running(elapsed_s, is_loading, progress)?;
        let forecast = running_forecast(&work, retries, self.wait.as_ref(), seed, RUNS);
        let horizon = match work.loading {
            _ if work.run.is_borrowed() => Horizon::Borrowed,
            Some(_) => Horizon::Loading,
            None => Horizon::running(work.run.share_within(elapsed_s)),
        };
        Some(self.calibration.answer(horizon, forecast))
    }

    /// Weight of the jobs of other affinities from which the run times are borrowed. `None` if they are of this affinity.
    pub fn borrowed_samples(&self) -> Option<f64> {
        self.run.as_ref().filter(|run| run.is_borrowed() && run.samples() > self.samples).map(Durations::samples)
    }

    pub fn running(&self, elapsed_s: f64, is_loading: bool, progress: Option<Progress>) -> Option<RunningWork<'_>> {
        let run = self.run.as_ref()?;
        let loading = match is_loading {
            // The run times do not include the time to load.
            true => Some(self.load.as_ref()?),
            false => None,
        };
        let progress = progress.filter(|report| report.share > 0.0).map(|report| (report, &self.progress));
        Some(RunningWork { run, elapsed_s, loading, progress })
    }

    /// The answer for a job that becomes ready later.
    pub fn answer_scheduled(&self, ready_s: f64, retries: &RetryForecast, seed: u64) -> Option<Answer> {
        let run = self.run.as_ref()?;
        let forecast = scheduled_forecast(ready_s, run, None, retries, self.wait.as_ref(), seed, RUNS);
        let horizon = if run.is_borrowed() { Horizon::Borrowed } else { Horizon::Scheduled };
        Some(self.calibration.answer(horizon, forecast))
    }

    /// The answer for a job in line.
    pub fn answer_waiting(&self, forecast: Forecast) -> Option<Answer> {
        let run = self.run.as_ref()?;
        let horizon = match run.is_borrowed() {
            true => Horizon::Borrowed,
            false => Horizon::waiting(forecast.p50_s(), run.quantile(0.5)),
        };
        Some(self.calibration.answer(horizon, forecast))
    }
}
