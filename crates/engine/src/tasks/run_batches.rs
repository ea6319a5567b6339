//! Moves batches on: reads their input, makes their jobs, and writes their files once all have ended (R8).
//!
//! Every step looks in the database where the batch stands, so any node may take it, and a restart loses nothing.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use bytes::Bytes;
use domain::limits::{
    BATCH_CANCELS_AT_ONCE, BATCH_JOBS_AT_ONCE, BATCH_RESULTS_AT_ONCE, DEFAULT_MAX_ATTEMPTS, PAGE_ITEMS,
};
use domain::{JobState, Label, Name, Origin};
use futures_util::future::try_join_all;
use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use store::artifacts::Blobs;
use store::hints::Topic;
use store::jobs::enqueue::{Extras, NewJob};
use store::openai::files::NewFile;
use store::openai::steps::Written;
use store::openai::{Batch, BatchStatus, LineFault};
use store::tenants::quota::{Admission, Wanted};
use store::{Store, StoreError};

use crate::openai::lines::{self, Line};
use crate::openai::{ENDPOINTS, Models, models};
use crate::task::{Done, Task};

/// A batch that waits for a quota or a pool is looked at again after this at the latest.
const HELD_BACK_MAX: Duration = Duration::from_secs(30);
/// It is left alone for so many times as long as reading its input took.
const HELD_BACK_PER_READING: u32 = 10;

pub(crate) struct RunBatches {
    blobs: Blobs,
    /// Batches that wait, by id, and until when.
    held_back: Mutex<HashMap<String, Instant>>,
}

/// What a look at one batch came to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Moved {
    Ended,
    /// There is more to do at once.
    On,
    Waits,
}

impl Task for RunBatches {
    const NAME: &'static str = "run_batches";
    const EVERY: Duration = Duration::from_secs(1);
    const WAKE: Option<Topic> = Some(Topic::Batches);

    async fn run(&self, store: &Store) -> Result<Done, StoreError> {
        self.held_back().retain(|_, until| *until > Instant::now());
        let (mut ended, mut again) = (0, false);
        let mut after = String::new();
        loop {
            let open = store.open_batches(&after, PAGE_ITEMS).await?;
            for batch in &open {
                // One that cannot be moved on holds up no other.
                match self.step(store, batch).await {
                    Ok(moved) => {
                        ended += usize::from(moved == Moved::Ended);
                        again |= moved == Moved::On;
                    }
                    Err(error) => tracing::warn!(batch = batch.id, %error, "a batch could not be moved on"),
                }
            }
            match open.last() {
                Some(last) if open.len() == PAGE_ITEMS => after.clone_from(&last.id),
                _ => break,
            }
        }
        metrics::counter!("windlass_batches_ended_total").increment(ended as u64);
        let work = (ended > 0).then(|| format!("{ended} batches ended"));
        Ok(Done { work, again_in: again.then_some(Duration::from_millis(10)) })
    }
}

/// How long a batch is left alone that may come back in so many seconds.
fn pause(retry_s: u64, reading: Duration) -> Duration {
    Duration::from_secs(retry_s).max(reading.saturating_mul(HELD_BACK_PER_READING)).min(HELD_BACK_MAX)
}

impl RunBatches {
    pub(crate) fn new(blobs: Blobs) -> Self {
        Self { blobs, held_back: Mutex::default() }
    }

    fn held_back(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.held_back.lock().expect("nobody panics with the map in hand")
    }

    fn hold_back(&self, batch: &Batch, retry_s: u64, reading: Duration) -> Moved {
        self.held_back().insert(batch.id.clone(), Instant::now() + pause(retry_s, reading));
        Moved::Waits
    }

    async fn step(&self, store: &Store, batch: &Batch) -> Result<Moved, StoreError> {
        let expired = store.clock().now() >= batch.expires_at;
        match batch.status {
            BatchStatus::Validating if !expired => self.validate(store, batch).await,
            BatchStatus::InProgress if !expired => self.go_on(store, batch).await,
            BatchStatus::Finalizing => self.end(store, batch, BatchStatus::Completed).await,
            BatchStatus::Cancelling => self.call_off(store, batch, BatchStatus::Cancelled).await,
            _ => self.call_off(store, batch, BatchStatus::Expired).await,
        }
    }

    async fn input(&self, store: &Store, batch: &Batch) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(content) = store.batch_input(&self.blobs, batch).await? else { return Ok(None) };
        let add = |mut all: Vec<u8>, piece: Bytes| async move {
            all.extend_from_slice(&piece);
            Ok(all)
        };
        content.try_fold(Vec::new(), add).await.map(Some)
    }

    async fn validate(&self, store: &Store, batch: &Batch) -> Result<Moved, StoreError> {
        let verdict = match self.input(store, batch).await? {
            Some(input) => {
                let models = models(store, batch.tenant).await?;
                lines::read(&input, &batch.endpoint, Some(&models)).map(|lines| lines.len() as i64)
            }
            None => {
                let message = format!("there is no file {}", batch.input_file);
                Err(vec![LineFault { code: "file_not_found".into(), message, line: None }])
            }
        };
        let moved = if verdict.is_ok() { Moved::On } else { Moved::Ended };
        store.validated_batch(batch, verdict).await?;
        Ok(moved)
    }

    async fn go_on(&self, store: &Store, batch: &Batch) -> Result<Moved, StoreError> {
        if self.held_back().contains_key(&batch.id) {
            return Ok(Moved::Waits);
        }
        if batch.made < batch.total {
            return self.make_jobs(store, batch).await;
        }
        if !store.live_batch_jobs(batch, 1).await?.is_empty() {
            return Ok(Moved::Waits);
        }
        Ok(if store.finalize_batch(batch).await? { Moved::On } else { Moved::Waits })
    }

    async fn make_jobs(&self, store: &Store, batch: &Batch) -> Result<Moved, StoreError> {
        let began = Instant::now();
        let input = self.input(store, batch).await?.unwrap_or_default();
        let models = models(store, batch.tenant).await?;
        let lines = lines::read(&input, &batch.endpoint, None).unwrap_or_default();
        let reading = began.elapsed();
        let mut from = batch.made as usize;
        let mut at_once = BATCH_JOBS_AT_ONCE;
        while from < lines.len() {
            let to = lines.len().min(from + at_once);
            let jobs: Option<Vec<NewJob>> = lines[from..to].iter().map(|line| job(batch, line, &models)).collect();
            // A model whose pool went away since the batch was looked through is waited for.
            let Some(jobs) = jobs else { return Ok(self.hold_back(batch, 1, reading)) };
            let wanted = Wanted { jobs: jobs.len(), payload_bytes: jobs.iter().map(|job| job.payload.len()).sum() };
            if let Admission::Over { retry_s, .. } = store.admit(batch.tenant, wanted).await? {
                // What is more than the tenant may bring in now is made in smaller parts, or later.
                at_once = (to - from) / 2;
                if at_once == 0 {
                    // Reading it all for nothing is what must not happen often.
                    let for_nothing = from == batch.made as usize;
                    return Ok(self.hold_back(batch, retry_s, if for_nothing { reading } else { Duration::ZERO }));
                }
                continue;
            }
            // Another node may be making them too.
            if !store.make_batch_jobs(batch, from as i64, jobs).await? {
                return Ok(Moved::Waits);
            }
            from = to;
        }
        Ok(Moved::Waits)
    }

    /// Cancels what has not ended, and ends the batch when all has.
    async fn call_off(&self, store: &Store, batch: &Batch, end: BatchStatus) -> Result<Moved, StoreError> {
        let live = store.live_batch_jobs(batch, PAGE_ITEMS).await?;
        for some in live.chunks(BATCH_CANCELS_AT_ONCE) {
            let why = || format!("batch {}", end.as_str());
            try_join_all(some.iter().map(|job| store.cancel(batch.tenant, *job, why()))).await?;
        }
        if live.is_empty() { self.end(store, batch, end).await } else { Ok(Moved::On) }
    }

    async fn end(&self, store: &Store, batch: &Batch, end: BatchStatus) -> Result<Moved, StoreError> {
        let output = results(store, batch, end, |state| state == JobState::Succeeded);
        let output = self.written(store, batch, "output", output).await?;
        let unmade = Bytes::from(self.unmade(store, batch, end).await?);
        let errors = results(store, batch, end, |state| state != JobState::Succeeded);
        let errors = errors.chain(stream::iter([Ok(unmade)]));
        let errors = self.written(store, batch, "error", errors).await?;
        let ended = store.end_batch(&self.blobs, batch, end, output, errors).await?;
        Ok(if ended { Moved::Ended } else { Moved::Waits })
    }

    /// What is told of lines whose jobs were never made.
    async fn unmade(&self, store: &Store, batch: &Batch, end: BatchStatus) -> Result<String, StoreError> {
        if batch.made >= batch.total {
            return Ok(String::new());
        }
        let input = self.input(store, batch).await?.unwrap_or_default();
        let lines = lines::read(&input, &batch.endpoint, None).unwrap_or_default();
        let unmade = lines.iter().skip(batch.made as usize);
        Ok(unmade.map(|line| lines::write_unmade(&batch.id, line, end)).collect())
    }

    async fn written(
        &self,
        store: &Store,
        batch: &Batch,
        what: &str,
        lines: impl Stream<Item = Result<Bytes, StoreError>> + Send,
    ) -> Result<Option<Written>, StoreError> {
        let new = NewFile {
            filename: format!("{}_{what}.jsonl", batch.id),
            purpose: "batch_output".into(),
            principal: batch.principal.clone(),
            kept_s: batch.files_kept_s,
        };
        store.write_batch_file(&self.blobs, batch.tenant, new, lines).await
    }
}

fn job(batch: &Batch, line: &Line<'_>, models: &Models) -> Option<NewJob> {
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

/// The lines of a file, a page of results at a time.
fn results<'a>(
    store: &'a Store,
    batch: &'a Batch,
    end: BatchStatus,
    wanted: fn(JobState) -> bool,
) -> impl Stream<Item = Result<Bytes, StoreError>> + Send + 'a {
    stream::try_unfold(None, move |after| async move {
        let page = store.batch_results(batch, after, BATCH_RESULTS_AT_ONCE).await?;
        let Some(last) = page.last().map(|ended| ended.job) else { return Ok(None) };
        let lines: String =
            page.iter().filter(|ended| wanted(ended.state)).map(|ended| lines::write(ended, end)).collect();
        Ok(Some((Bytes::from(lines), Some(last))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r8_a_batch_that_waits_is_read_again_ever_less_often_the_longer_that_takes() {
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
