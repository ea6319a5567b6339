//! Advances batches: validates their input, creates their jobs, and writes their files after all jobs have ended.
//!
//! Each step reads the batch's state from the database, so any node can take it and a restart loses nothing.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use bytes::Bytes;
use domain::limits::{
    BATCH_CONCURRENT_CANCELS, BATCH_INSERT_JOBS, BATCH_RESULT_ROWS, DEFAULT_MAX_ATTEMPTS, PAGE_ITEMS,
};
use domain::{JobState, Label, Name, Origin};
use futures_util::future::try_join_all;
use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use store::access::tenants::quota::{Admission, AdmissionRequest};
use store::db::notifier::Topic;
use store::queue::artifacts::Blobs;
use store::queue::enqueue::{Extras, NewJob};
use store::runtimes::openai::files::NewFile;
use store::runtimes::openai::steps::WrittenFile;
use store::runtimes::openai::{BatchStatus, LineFault, OpenAiBatch};
use store::{Store, StoreError};

use crate::runtimes::openai::lines;
use crate::runtimes::openai::lines::InputLine;
use crate::runtimes::openai::{ENDPOINTS, Models, models};
use crate::task::{Task, TaskOutcome};

/// Longest pause of a batch that waits for quota or a pool.
const DEFER_MAX: Duration = Duration::from_secs(30);
/// The pause is at least this many times as long as reading the input took.
const DEFER_PER_READ: u32 = 10;

pub(crate) struct RunBatches {
    blobs: Blobs,
    /// Deferred batches by id, with the end of their pause.
    deferred: Mutex<HashMap<String, Instant>>,
}

/// The result of one step of a batch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StepResult {
    Ended,
    /// More can be done at once.
    More,
    Waits,
}

impl Task for RunBatches {
    const NAME: &'static str = "run_batches";
    const EVERY: Duration = Duration::from_secs(1);
    const WAKE: Option<Topic> = Some(Topic::Batches);

    async fn run(&self, store: &Store) -> Result<TaskOutcome, StoreError> {
        self.deferred().retain(|_, until| *until > Instant::now());
        let (mut ended, mut again) = (0, false);
        let mut after = String::new();
        loop {
            let open = store.open_batches(&after, PAGE_ITEMS).await?;
            for batch in &open {
                // An error of one batch must not delay the others.
                match self.step(store, batch).await {
                    Ok(result) => {
                        ended += usize::from(result == StepResult::Ended);
                        again |= result == StepResult::More;
                    }
                    Err(error) => tracing::warn!(batch = batch.id, %error, "failed to advance a batch"),
                }
            }
            match open.last() {
                Some(last) if open.len() == PAGE_ITEMS => after.clone_from(&last.id),
                _ => break,
            }
        }
        metrics::counter!("windlass_batches_ended_total").increment(ended as u64);
        let work = (ended > 0).then(|| format!("{ended} batches ended"));
        Ok(TaskOutcome { work, next_in: again.then_some(Duration::from_millis(10)) })
    }
}

/// The pause of a batch that may be retried after `retry_s`.
fn pause(retry_s: u64, reading: Duration) -> Duration {
    Duration::from_secs(retry_s).max(reading.saturating_mul(DEFER_PER_READ)).min(DEFER_MAX)
}

impl RunBatches {
    pub(crate) fn new(blobs: Blobs) -> Self {
        Self { blobs, deferred: Mutex::default() }
    }

    fn deferred(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.deferred.lock().expect("lock poisoned")
    }

    fn defer(&self, batch: &OpenAiBatch, retry_s: u64, reading: Duration) -> StepResult {
        self.deferred().insert(batch.id.clone(), Instant::now() + pause(retry_s, reading));
        StepResult::Waits
    }

    async fn step(&self, store: &Store, batch: &OpenAiBatch) -> Result<StepResult, StoreError> {
        let expired = store.clock().now() >= batch.expires_at;
        match batch.status {
            BatchStatus::Validating if !expired => self.validate(store, batch).await,
            BatchStatus::InProgress if !expired => self.advance(store, batch).await,
            BatchStatus::Finalizing => self.end(store, batch, BatchStatus::Completed).await,
            BatchStatus::Cancelling => self.cancel(store, batch, BatchStatus::Cancelled).await,
            _ => self.cancel(store, batch, BatchStatus::Expired).await,
        }
    }

    async fn input(&self, store: &Store, batch: &OpenAiBatch) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(content) = store.batch_input(&self.blobs, batch).await? else { return Ok(None) };
        let add = |mut all: Vec<u8>, chunk: Bytes| async move {
            all.extend_from_slice(&chunk);
            Ok(all)
        };
        content.try_fold(Vec::new(), add).await.map(Some)
    }

    async fn validate(&self, store: &Store, batch: &OpenAiBatch) -> Result<StepResult, StoreError> {
        let verdict = match self.input(store, batch).await? {
            Some(input) => {
                let models = models(store, batch.tenant).await?;
                lines::read(&input, &batch.endpoint, Some(&models)).map(|lines| lines.len() as i64)
            }
            None => {
                let message = format!("the file {} does not exist", batch.input_file);
                Err(vec![LineFault { code: "file_not_found".into(), message, line: None }])
            }
        };
        let result = if verdict.is_ok() { StepResult::More } else { StepResult::Ended };
        store.validated_batch(batch, verdict).await?;
        Ok(result)
    }

    async fn advance(&self, store: &Store, batch: &OpenAiBatch) -> Result<StepResult, StoreError> {
        if self.deferred().contains_key(&batch.id) {
            return Ok(StepResult::Waits);
        }
        if batch.made < batch.total {
            return self.make_jobs(store, batch).await;
        }
        if !store.live_batch_jobs(batch, 1).await?.is_empty() {
            return Ok(StepResult::Waits);
        }
        Ok(if store.finalize_batch(batch).await? { StepResult::More } else { StepResult::Waits })
    }

    async fn make_jobs(&self, store: &Store, batch: &OpenAiBatch) -> Result<StepResult, StoreError> {
        let started = Instant::now();
        let input = self.input(store, batch).await?.unwrap_or_default();
        let models = models(store, batch.tenant).await?;
        let lines = lines::read(&input, &batch.endpoint, None).unwrap_or_default();
        let reading = started.elapsed();
        let mut from = batch.made as usize;
        let mut chunk = BATCH_INSERT_JOBS;
        while from < lines.len() {
            let to = lines.len().min(from + chunk);
            let jobs: Option<Vec<NewJob>> = lines[from..to].iter().map(|line| job(batch, line, &models)).collect();
            // Waits for a model that was removed from its pool after the validation.
            let Some(jobs) = jobs else { return Ok(self.defer(batch, 1, reading)) };
            let wanted =
                AdmissionRequest { jobs: jobs.len(), payload_bytes: jobs.iter().map(|job| job.payload.len()).sum() };
            if let Admission::Over { retry_s, .. } = store.admit(batch.tenant, wanted).await? {
                // Over the tenant's quota: create fewer jobs, or defer.
                chunk = (to - from) / 2;
                if chunk == 0 {
                    // Reading the whole input without creating a job must not happen often.
                    let no_progress = from == batch.made as usize;
                    return Ok(self.defer(batch, retry_s, if no_progress { reading } else { Duration::ZERO }));
                }
                continue;
            }
            // Another node may be creating the same jobs.
            if !store.make_batch_jobs(batch, from as i64, jobs).await? {
                return Ok(StepResult::Waits);
            }
            from = to;
        }
        Ok(StepResult::Waits)
    }

    /// Cancels the unfinished jobs, and ends the batch when none remains.
    async fn cancel(&self, store: &Store, batch: &OpenAiBatch, end: BatchStatus) -> Result<StepResult, StoreError> {
        let live = store.live_batch_jobs(batch, PAGE_ITEMS).await?;
        for chunk in live.chunks(BATCH_CONCURRENT_CANCELS) {
            let why = || format!("batch {}", end.as_str());
            try_join_all(chunk.iter().map(|job| store.cancel(batch.tenant, *job, why()))).await?;
        }
        if live.is_empty() { self.end(store, batch, end).await } else { Ok(StepResult::More) }
    }

    async fn end(&self, store: &Store, batch: &OpenAiBatch, end: BatchStatus) -> Result<StepResult, StoreError> {
        let output = results(store, batch, end, |state| state == JobState::Succeeded);
        let output = self.write_file(store, batch, "output", output).await?;
        let without_job = Bytes::from(self.lines_without_job(store, batch, end).await?);
        let errors = results(store, batch, end, |state| state != JobState::Succeeded);
        let errors = errors.chain(stream::iter([Ok(without_job)]));
        let errors = self.write_file(store, batch, "error", errors).await?;
        let ended = store.end_batch(&self.blobs, batch, end, output, errors).await?;
        Ok(if ended { StepResult::Ended } else { StepResult::Waits })
    }

    /// The error lines for input lines whose jobs were never created.
    async fn lines_without_job(
        &self,
        store: &Store,
        batch: &OpenAiBatch,
        end: BatchStatus,
    ) -> Result<String, StoreError> {
        if batch.made >= batch.total {
            return Ok(String::new());
        }
        let input = self.input(store, batch).await?.unwrap_or_default();
        let lines = lines::read(&input, &batch.endpoint, None).unwrap_or_default();
        let without_job = lines.iter().skip(batch.made as usize);
        Ok(without_job.map(|line| lines::write_without_job(&batch.id, line, end)).collect())
    }

    async fn write_file(
        &self,
        store: &Store,
        batch: &OpenAiBatch,
        what: &str,
        lines: impl Stream<Item = Result<Bytes, StoreError>> + Send,
    ) -> Result<Option<WrittenFile>, StoreError> {
        let new = NewFile {
            filename: format!("{}_{what}.jsonl", batch.id),
            purpose: "batch_output".into(),
            principal: batch.principal.clone(),
            retention_s: batch.files_kept_s,
        };
        store.write_batch_file(&self.blobs, batch.tenant, new, lines).await
    }
}

fn job(batch: &OpenAiBatch, line: &InputLine<'_>, models: &Models) -> Option<NewJob> {
    let kind = ENDPOINTS.iter().find(|(path, _)| *path == batch.endpoint).map_or("openai", |(_, kind)| *kind);
    let origin = Origin::Batch { batch: batch.id.clone(), custom_id: line.custom_id.clone() };
    let extras = Extras { run: Some(Label::stored(&batch.id)), triggered_by: origin.stored(), ..Extras::default() };
    Some(NewJob {
        queue: models.get(&line.model)?.queue.clone(),
        kind: Name::stored(kind),
        payload: line.body.get().into(),
        affinity: Some(Label::stored(&line.model)),
        priority: 0,
        run_at: None,
        max_attempts: DEFAULT_MAX_ATTEMPTS,
        principal: batch.principal.as_str().into(),
        extras: Some(Box::new(extras)),
    })
}

/// The formatted lines of a file, read one page of results at a time.
fn results<'a>(
    store: &'a Store,
    batch: &'a OpenAiBatch,
    end: BatchStatus,
    wanted: fn(JobState) -> bool,
) -> impl Stream<Item = Result<Bytes, StoreError>> + Send + 'a {
    stream::try_unfold(None, move |after| async move {
        let page = store.batch_results(batch, after, BATCH_RESULT_ROWS).await?;
        let Some(last) = page.last().map(|ended| ended.job) else { return Ok(None) };
        let lines: String =
            page.iter().filter(|ended| wanted(ended.state)).map(|ended| lines::write(ended, end)).collect();
        Ok(Some((Bytes::from(lines), Some(last))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement R8.
    #[test]
    fn the_pause_between_batch_reads_grows_with_the_read_time() {
        let check = |retry_s, reading_ms, expected_ms| {
            let paused = pause(retry_s, Duration::from_millis(reading_ms));
            assert_eq!(paused, Duration::from_millis(expected_ms), "{retry_s} s, {reading_ms} ms");
        };
        check(1, 0, 1_000);
        check(5, 100, 5_000);
        check(1, 2_000, 20_000);
        check(1, 60_000, 30_000);
        check(86_400, 0, 30_000);
    }
}
