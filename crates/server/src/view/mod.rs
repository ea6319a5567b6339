//! Views: turn the types of the store into those of the wire contract, with the rights of the caller.

pub(crate) mod fleet;
pub(crate) mod runtimes;
pub(crate) mod workflows;

use domain::triggers::trigger::Source;
use domain::{JobError, RetryPolicy, Right, Time};
use engine::outbound::parse_url;
use store::StoreError;
use store::access::secrets::secret_fields;
use store::access::tokens::{Serves, Token};
use store::queue::claim::ClaimedJob;
use store::queue::counters::Counts;
use store::queue::enqueue::Accepted;
use store::queue::get::StoredJob;
use store::queue::history::HistoryItem;
use store::queue::queues::get::{Pause, Queue};
use store::queue::workers::list::ListedWorker;
use store::triggers::dead_letters::DeadLetter;
use store::triggers::dead_letters::replay::ReplayedWork;
use store::triggers::runs::{RunOutcome, TriggerRun};
use store::triggers::schedule::Slots;
use store::triggers::target::{self, Target, script_id};
use store::triggers::{Trigger, filter};
use wire::{
    AttemptView, DeadLetterView, HandlerView, JobAccepted, JobView, QueueCounts, QueueView, RawValue, ReplayView,
    RetrySettings, Timestamp, TriggerRetry, TriggerRunView, TriggerView, WebhookSettings,
};

use crate::validate::triggers::trigger::without_secrets;

use crate::access::auth::Principal;

pub(crate) fn time(time: Time) -> Timestamp {
    Timestamp::from_microsecond(time.micros()).unwrap_or(Timestamp::MAX)
}

pub(crate) fn raw(json: String) -> Result<Box<RawValue>, StoreError> {
    RawValue::from_string(json)
        .map_err(|error| StoreError::Unexpected { context: "stored JSON".into(), source: Some(Box::new(error)) })
}

pub(crate) fn accepted(job: Accepted) -> JobAccepted {
    JobAccepted {
        id: job.id.uuid(),
        state: job.state.to_string(),
        queue: job.queue.to_string(),
        kind: job.kind.to_string(),
        run_at: time(job.run_at),
        created_at: time(job.created_at),
    }
}

/// An existing job, as the response to a repeated request.
pub(crate) fn accepted_before(job: &StoredJob) -> JobAccepted {
    JobAccepted {
        id: job.id.uuid(),
        state: job.state.to_string(),
        queue: job.lane.queue.to_string(),
        kind: job.lane.kind.to_string(),
        run_at: time(job.run_at),
        created_at: time(job.created_at),
    }
}

/// Builds a job with the rights of this caller: its contents need rights of their own.
pub(crate) fn job(job: StoredJob, principal: &Principal) -> Result<JobView, StoreError> {
    let reads = |right| principal.reads(right, &job);
    let shown = ShownContents {
        payloads: reads(Right::ReadPayloads),
        results: reads(Right::ReadResults),
        logs: reads(Right::ReadLogs) || reads(Right::ReadResults),
    };
    job_with(job, shown)
}

/// Builds a job for a worker that holds the claim of a job which uses its result.
pub(crate) fn job_with_result(job: StoredJob) -> Result<JobView, StoreError> {
    job_with(job, ShownContents { payloads: false, results: true, logs: true })
}

/// The contents of a job that its reader has the rights to.
struct ShownContents {
    payloads: bool,
    results: bool,
    logs: bool,
}

fn job_with(job: StoredJob, shown: ShownContents) -> Result<JobView, StoreError> {
    let ShownContents { payloads, results, logs } = shown;
    let hidden = [(!payloads, "payload"), (!results, "result"), (!logs, "error.message")];
    let redacted =
        hidden.into_iter().filter(|(is_hidden, _)| *is_hidden).map(|(_, member)| member.to_owned()).collect();
    let webhook = job.webhook.as_deref().and_then(|text| serde_json::from_str::<WebhookSettings>(text).ok());
    Ok(JobView {
        id: job.id.uuid(),
        queue: job.lane.queue.to_string(),
        kind: job.lane.kind.to_string(),
        state: job.state.to_string(),
        payload: raw(if payloads { job.payload } else { "null".into() })?,
        affinity: job.lane.affinity.map(|affinity| affinity.to_string()),
        priority: job.lane.priority.into(),
        run_at: time(job.run_at),
        subject: job.subject,
        process: job.process,
        run: job.run,
        unique_key: job.unique_key,
        concurrency_key: job.concurrency_key,
        attempt: job.attempt.into(),
        max_attempts: job.max_attempts.into(),
        retry: job.retry.map(retry),
        timeout_s: job.timeout_s,
        deadline_s: job.deadline_s,
        traceparent: job.traceparent.map(|context| context.as_str().to_owned()),
        tags: job.tags,
        phase: job.phase,
        progress: job.progress,
        result: job.result.filter(|_| results).map(raw).transpose()?,
        error: job.error.map(error).map(|error| if logs { error } else { without_message(error) }),
        worker: job.worker.map(|worker| worker.uuid()),
        epoch: job.epoch.0,
        created_at: time(job.created_at),
        updated_at: time(job.updated_at),
        started_at: job.started_at.map(time),
        finished_at: job.finished_at.map(time),
        parent: job.parent.map(|parent| parent.uuid()),
        retried_as: job.retried_as.map(|again| again.uuid()),
        principal: job.principal,
        triggered_by: Some(job.triggered_by.unwrap_or_else(|| "api".into())),
        depth: job.depth.into(),
        // A URL may contain a secret.
        webhook_url: webhook.filter(|_| payloads).map(|webhook| webhook.url),
        artifacts: None,
        redacted,
    })
}

/// True if the caller may read error messages of any job.
pub(crate) fn reads_messages(principal: &Principal) -> bool {
    principal.has(Right::ReadLogs) || principal.has(Right::ReadResults)
}

fn without_message(error: wire::JobError) -> wire::JobError {
    wire::JobError { message: String::new(), ..error }
}

pub(crate) fn error(error: JobError) -> wire::JobError {
    wire::JobError { code: error.code, message: error.message, retryable: error.retryable }
}

fn retry(policy: RetryPolicy) -> RetrySettings {
    RetrySettings {
        initial_s: Some(policy.initial_s()),
        maximum_s: Some(policy.maximum_s()),
        exponent: Some(policy.exponent()),
        jitter: Some(policy.jitter()),
    }
}

pub(crate) fn history_item(item: HistoryItem, reads_messages: bool) -> wire::HistoryItem {
    wire::HistoryItem {
        event: item.event,
        at: time(item.at),
        attempt: item.attempt.into(),
        epoch: item.epoch,
        worker: item.worker.map(|worker| worker.uuid()),
        actor: item.actor,
        cause: item.cause,
        message: item.message.filter(|_| reads_messages),
    }
}

pub(crate) fn claimed(job: ClaimedJob) -> Result<wire::ClaimedJob, StoreError> {
    Ok(wire::ClaimedJob {
        id: job.id.uuid(),
        epoch: job.epoch.0,
        queue: job.queue.to_string(),
        kind: job.kind.to_string(),
        payload: raw(job.payload)?,
        affinity: job.affinity.map(|affinity| affinity.to_string()),
        priority: job.priority.into(),
        subject: job.subject,
        process: job.process,
        run: job.run,
        inputs: job.inputs.map(workflows::inputs).transpose()?,
        attempt: job.attempt.into(),
        max_attempts: job.max_attempts.into(),
        timeout_s: job.timeout_s,
        created_at: time(job.created_at),
        tenant: job.tenant.map(|tenant| tenant.to_string()),
        traceparent: job.traceparent.map(|context| context.as_str().to_owned()),
        journal: job.journal.map(crate::http::v1::workflows::journal::claimed).transpose()?,
        state: job.state.to_string(),
    })
}

pub(crate) fn worker(listed: ListedWorker) -> wire::WorkerView {
    let ListedWorker { worker, claims } = listed;
    wire::WorkerView {
        id: worker.id.uuid(),
        name: worker.name,
        queues: worker.queues.iter().map(ToString::to_string).collect(),
        kinds: worker.kinds.map(|kinds| kinds.iter().map(ToString::to_string).collect()),
        affinities: worker.affinities.map(|labels| labels.iter().map(ToString::to_string).collect()),
        lease_s: worker.lease.term_ms / 1_000,
        lease_until: time(worker.lease.until),
        affinity: worker.affinity.map(|affinity| affinity.to_string()),
        claims,
        draining: worker.draining,
        registered_at: time(worker.registered_at),
        last_claim_at: worker.last_claim_at.map(time),
    }
}

pub(crate) fn token(token: &Token, now: Time) -> wire::TokenView {
    let state = match token.revoked_at {
        Some(_) => "revoked",
        None if !token.is_alive(now) => "expired",
        None => "active",
    };
    let serves = token.serves.as_ref().map(|serves| match serves {
        Serves::Everyone => wire::Serves::Everyone("*".into()),
        Serves::Tenants(tenants) => wire::Serves::Tenants(tenants.iter().map(|(_, name)| name.to_string()).collect()),
    });
    wire::TokenView {
        id: token.id.uuid(),
        name: token.name.to_string(),
        role: token.access.role.to_string(),
        tenant: token.tenant_name.to_string(),
        queues: token.access.queues.as_ref().map(|queues| queues.iter().map(ToString::to_string).collect()),
        rights: token.access.granted.iter().map(|right| right.to_string()).collect(),
        serves,
        state: state.into(),
        created_by: token.created_by.clone(),
        created_at: time(token.created_at),
        expires_at: token.expires_at.map(time),
        revoked_at: token.revoked_at.map(time),
        revoked_by: token.revoked_by.clone(),
        last_used_at: token.used_at.map(time),
    }
}

/// Returns a destination with the rights of this caller: without the right to read payloads only the origin, because a
/// URL may contain a secret.
pub(crate) fn url(url: String, principal: &Principal) -> String {
    if principal.has(Right::ReadPayloads) {
        return url;
    }
    parse_url(&url).map(|url| url.origin().ascii_serialization()).unwrap_or_default()
}

pub(crate) fn queue(queue: Queue, principal: &Principal) -> QueueView {
    let paused_at = queue.paused.as_ref().map(|pause| time(pause.at));
    let Pause { reason, by, .. } = queue.paused.unwrap_or_default();
    QueueView {
        name: queue.name.to_string(),
        paused: paused_at.is_some(),
        paused_reason: reason,
        paused_by: by,
        paused_at,
        settings: settings(queue.settings, principal),
        counts: counts(&queue.counts),
        oldest_waiting_at: queue.oldest_waiting_at.map(time),
        swaps_made: queue.counts.swaps_made,
        swaps_avoided: queue.counts.swaps_avoided,
    }
}

pub(crate) fn counts(counts: &Counts) -> QueueCounts {
    QueueCounts {
        waiting: counts.waiting,
        scheduled: counts.scheduled,
        queued: counts.queued,
        running: counts.running,
        succeeded: counts.succeeded,
        failed: counts.failed,
        canceled: counts.canceled,
    }
}

fn settings(settings: domain::QueueSettings, principal: &Principal) -> wire::QueueSettings {
    let phases: Vec<String> = settings.phases.iter().map(ToString::to_string).collect();
    let kind =
        |kind: domain::KindSettings| wire::KindSettings { retry: kind.retry.map(retry), timeout_s: kind.timeout_s };
    let kinds = settings.kinds.into_iter().map(|(name, settings)| (name.to_string(), kind(settings)));
    let kinds: std::collections::BTreeMap<_, _> = kinds.collect();
    wire::QueueSettings {
        concurrency: settings.concurrency.map(i64::from),
        per_key: settings.per_key.map(i64::from),
        rate_per_s: settings.rate_per_s,
        starvation_s: settings.starvation_s,
        retry: settings.retry.map(retry),
        timeout_s: settings.timeout_s,
        retention_s: settings.retention_s,
        phases: (!phases.is_empty()).then_some(phases),
        webhook: settings
            .webhook
            .map(|webhook| WebhookSettings { url: url(webhook.url, principal), ..WebhookSettings::default() }),
        kinds: (!kinds.is_empty()).then_some(kinds),
    }
}

pub(crate) fn dead_letter(letter: DeadLetter, principal: &Principal) -> Result<DeadLetterView, StoreError> {
    let messages = reads_messages(principal);
    let error = |job_error: JobError| if messages { error(job_error) } else { without_message(error(job_error)) };
    let first = letter.attempts.first().map_or(letter.created_at, |attempt| attempt.at);
    let last = letter.attempts.last().map_or(letter.created_at, |attempt| attempt.at);
    let resolved = letter.resolved.as_ref();
    // The payload of a failed job is its own. That of a delivery or a run is the event, which for jobs contains results.
    let is_job_event = letter.queue.is_none() && letter.source == Source::Job.as_str();
    let is_readable = !is_job_event || principal.has(Right::ReadResults);
    Ok(DeadLetterView {
        id: letter.id.uuid(),
        event_id: letter.event.uuid(),
        trigger_id: letter.trigger.map(|trigger| trigger.uuid()),
        script_id: letter.script,
        job_id: letter.job.map(|job| job.uuid()),
        depth: letter.depth.into(),
        attempt_count: letter.attempts.len() as i64,
        first_attempt_at: time(first),
        last_attempt_at: time(last),
        created_at: time(letter.created_at),
        resolved_at: resolved.map(|resolved| time(resolved.at)),
        resolution: resolved.map(|resolved| resolved.resolution.to_string()),
        resolved_by: resolved.map(|resolved| resolved.by.clone()),
        note: resolved.and_then(|resolved| resolved.note.clone()),
        replayed_as: resolved.and_then(|resolved| resolved.replayed_as),
        source: letter.source,
        op: letter.op,
        queue: letter.queue,
        kind: letter.kind,
        payload: raw(if is_readable { letter.payload } else { "null".into() })?,
        attempts: letter
            .attempts
            .into_iter()
            .map(|attempt| AttemptView { at: time(attempt.at), error: error(attempt.error) })
            .collect(),
        last_error: error(letter.last_error),
        handlers: letter
            .handlers
            .into_iter()
            .map(|handler| HandlerView {
                trigger_id: handler.trigger.uuid(),
                outcome: handler.outcome.as_str().into(),
                at: time(handler.at),
                error: handler.error.map(error),
            })
            .collect(),
    })
}

pub(crate) fn replay(work: ReplayedWork) -> ReplayView {
    match work {
        ReplayedWork::Job(job) => ReplayView { job_id: Some(job.uuid()), event_id: None, delivery_id: None },
        ReplayedWork::Event(event) => ReplayView { job_id: None, event_id: Some(event.uuid()), delivery_id: None },
        ReplayedWork::Delivery(delivery) => {
            ReplayView { job_id: None, event_id: None, delivery_id: Some(delivery.uuid()) }
        }
    }
}

/// Number of future fire times shown.
const NEXT_FIRES: usize = 5;

pub(crate) fn trigger(trigger: Trigger, principal: &Principal, now: Time) -> Result<TriggerView, StoreError> {
    let schedule = match trigger.source {
        Source::Cron if trigger.enabled => filter::read(trigger.source, trigger.id, &trigger.filter).ok(),
        _ => None,
    };
    let slots = schedule.and_then(|filter| Slots::read(&filter.schedule?).ok());
    let retry = retry(trigger.retry);
    Ok(TriggerView {
        id: trigger.id.uuid(),
        name: trigger.name,
        source: trigger.source.to_string(),
        filter: raw(without_secrets(trigger.filter, secret_fields::in_filter))?,
        script_id: script(&trigger.target),
        target: raw(without_secrets(trigger.target, secret_fields::in_target))?,
        mode: trigger.mode.as_str().into(),
        retry: TriggerRetry {
            max_attempts: Some(trigger.max_attempts.into()),
            initial_s: retry.initial_s,
            maximum_s: retry.maximum_s,
            exponent: retry.exponent,
            jitter: retry.jitter,
        },
        enabled: trigger.enabled,
        handles: trigger.handles,
        principal: trigger.principal,
        created_at: time(trigger.created_at),
        updated_at: time(trigger.updated_at),
        fired: trigger.fired,
        failed: trigger.failed,
        loops_stopped: trigger.loops_stopped,
        missed: trigger.missed,
        last_missed_at: trigger.last_missed_at.map(time),
        last_fired_at: trigger.last_fired_at.map(time),
        last_error: trigger.last_error.map(|error| visible_error(error, principal)),
        hook: (trigger.source == Source::Http).then(|| format!("/api/v1/hooks/{}", trigger.id)),
        next_fires: slots.map(|slots| slots.next(now, NEXT_FIRES).into_iter().map(time).collect()).unwrap_or_default(),
    })
}

/// Hides everything except the error code from callers that may not read logs, because the message may contain payload
/// data.
fn visible_error(error: String, principal: &Principal) -> String {
    match error.split_once(": ") {
        Some((code, _)) if !principal.has(Right::ReadLogs) => code.to_owned(),
        _ => error,
    }
}

fn script(target: &str) -> Option<uuid::Uuid> {
    match target::read(target) {
        Ok(Target::Script(source)) => Some(script_id(&source)),
        _ => None,
    }
}

pub(crate) fn trigger_run(run: TriggerRun, principal: &Principal) -> Result<TriggerRunView, StoreError> {
    let (job_id, delivery_id) = match run.outcome {
        RunOutcome::Job(job) => (Some(job.uuid()), None),
        RunOutcome::Delivery(delivery) => (None, Some(delivery)),
        _ => (None, None),
    };
    let result = run.ran.as_ref().and_then(|ran| ran.result.clone()).filter(|_| principal.has(Right::ReadResults));
    Ok(TriggerRunView {
        id: run.id,
        trigger_id: run.trigger.uuid(),
        event_id: run.event.uuid(),
        attempt: run.attempt,
        at: time(run.at),
        outcome: run.outcome.as_str().into(),
        job_id,
        delivery_id,
        script_id: run.ran.as_ref().map(|ran| ran.script),
        duration_ms: run.ran.as_ref().map(|ran| ran.duration_ms),
        error: run.error.map(error),
        result: result.map(raw).transpose()?,
        log: run.ran.map(|ran| ran.log).unwrap_or_default(),
    })
}
