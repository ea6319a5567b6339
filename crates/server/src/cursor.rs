//! Opaque pagination cursors. Their format may change between versions.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use domain::{DeadLetterId, JobId, Label, Name, Time, TokenId, TriggerId, WorkerId};
use store::signals::failures::list::FailureCursor;
use store::signals::ttfs::list::TtfsCursor;
use uuid::Uuid;

use crate::error::ApiError;

/// Version of the format. A cursor starts with it and a letter for its listing, so that no listing accepts the cursor
/// of another.
const VERSION: u8 = 1;

/// The letter of each listing. The compiler rejects a letter that two listings share.
#[derive(Clone, Copy)]
#[repr(u8)]
enum Letter {
    Abandoned = b'a',
    DeadLetters = b'd',
    Deliveries = b'v',
    Eligible = b'e',
    Failures = b'f',
    Jobs = b'j',
    Journal = b'h',
    Keys = b'k',
    Operations = b'o',
    Pools = b'b',
    Processes = b'p',
    Queues = b'q',
    Runs = b'r',
    Runtimes = b'c',
    Signals = b'i',
    Signatures = b'g',
    Subjects = b's',
    Tenants = b'n',
    Timeline = b'l',
    Tokens = b'x',
    Triggers = b't',
    TtfsEvents = b'm',
    Workers = b'w',
    WorkflowRuns = b'u',
}

pub(crate) fn after_job(job: JobId) -> String {
    encode(Letter::Jobs, job.uuid().as_bytes())
}

pub(crate) fn job(cursor: Option<&str>) -> Result<Option<JobId>, ApiError> {
    cursor.map(|cursor| id(Letter::Jobs, cursor).map(JobId::new)).transpose()
}

/// Signals are listed by job.
pub(crate) fn after_signal(job: JobId) -> String {
    encode(Letter::Signals, job.uuid().as_bytes())
}

pub(crate) fn signal(cursor: Option<&str>) -> Result<Option<JobId>, ApiError> {
    cursor.map(|cursor| id(Letter::Signals, cursor).map(JobId::new)).transpose()
}

/// TTFS events are listed by time, and by id within one time.
pub(crate) fn after_ttfs_event((at, id): TtfsCursor) -> String {
    encode(Letter::TtfsEvents, &[&at.micros().to_be_bytes()[..], id.as_bytes()].concat())
}

pub(crate) fn ttfs_event(cursor: Option<&str>) -> Result<Option<TtfsCursor>, ApiError> {
    let position = |cursor: &str| {
        let bytes = decode(Letter::TtfsEvents, cursor)?;
        let parts = bytes.split_first_chunk::<8>().and_then(|(at, id)| Some((*at, Uuid::from_slice(id).ok()?)));
        let (at, id) = parts.ok_or_else(ApiError::invalid_cursor)?;
        Ok((Time::from_micros(i64::from_be_bytes(at)), id))
    };
    cursor.map(position).transpose()
}

pub(crate) fn after_worker(worker: WorkerId) -> String {
    encode(Letter::Workers, worker.uuid().as_bytes())
}

pub(crate) fn worker(cursor: Option<&str>) -> Result<Option<WorkerId>, ApiError> {
    cursor.map(|cursor| id(Letter::Workers, cursor).map(WorkerId::new)).transpose()
}

pub(crate) fn after_trigger(trigger: TriggerId) -> String {
    encode(Letter::Triggers, trigger.uuid().as_bytes())
}

pub(crate) fn trigger(cursor: Option<&str>) -> Result<Option<TriggerId>, ApiError> {
    cursor.map(|cursor| id(Letter::Triggers, cursor).map(TriggerId::new)).transpose()
}

pub(crate) fn after_run(run: Uuid) -> String {
    encode(Letter::Runs, run.as_bytes())
}

pub(crate) fn run(cursor: Option<&str>) -> Result<Option<Uuid>, ApiError> {
    cursor.map(|cursor| id(Letter::Runs, cursor)).transpose()
}

pub(crate) fn after_dead_letter(letter: DeadLetterId) -> String {
    encode(Letter::DeadLetters, letter.uuid().as_bytes())
}

pub(crate) fn dead_letter(cursor: Option<&str>) -> Result<Option<DeadLetterId>, ApiError> {
    cursor.map(|cursor| id(Letter::DeadLetters, cursor).map(DeadLetterId::new)).transpose()
}

pub(crate) fn after_key(key: &str) -> String {
    encode(Letter::Keys, key.as_bytes())
}

pub(crate) fn key(cursor: Option<&str>) -> Result<Option<String>, ApiError> {
    cursor.map(|cursor| label(&text(Letter::Keys, cursor)?)).transpose()
}

pub(crate) fn after_queue(queue: &Name) -> String {
    encode(Letter::Queues, queue.as_str().as_bytes())
}

pub(crate) fn queue(cursor: Option<&str>) -> Result<Option<Name>, ApiError> {
    cursor.map(|cursor| name(Letter::Queues, cursor)).transpose()
}

pub(crate) fn after_token(token: TokenId) -> String {
    encode(Letter::Tokens, token.uuid().as_bytes())
}

pub(crate) fn token(cursor: Option<&str>) -> Result<Option<TokenId>, ApiError> {
    cursor.map(|cursor| id(Letter::Tokens, cursor).map(TokenId::new)).transpose()
}

pub(crate) fn after_tenant(tenant: &Name) -> String {
    encode(Letter::Tenants, tenant.as_str().as_bytes())
}

pub(crate) fn tenant(cursor: Option<&str>) -> Result<Option<Name>, ApiError> {
    cursor.map(|cursor| name(Letter::Tenants, cursor)).transpose()
}

pub(crate) fn after_abandoned(job: JobId) -> String {
    encode(Letter::Abandoned, job.uuid().as_bytes())
}

pub(crate) fn abandoned(cursor: Option<&str>) -> Result<Option<JobId>, ApiError> {
    cursor.map(|cursor| id(Letter::Abandoned, cursor).map(JobId::new)).transpose()
}

/// Deliveries are listed by sequence number.
pub(crate) fn after_delivery(seq: i64) -> String {
    encode(Letter::Deliveries, &seq.to_be_bytes())
}

pub(crate) fn delivery(cursor: Option<&str>) -> Result<Option<i64>, ApiError> {
    cursor.map(|cursor| number(Letter::Deliveries, cursor)).transpose()
}

/// Entries of a journal are listed by position.
pub(crate) fn after_journal(position: i64) -> String {
    encode(Letter::Journal, &position.to_be_bytes())
}

pub(crate) fn journal(cursor: Option<&str>) -> Result<Option<i64>, ApiError> {
    cursor.map(|cursor| number(Letter::Journal, cursor)).transpose()
}

pub(crate) fn after_process(process: &Name) -> String {
    encode(Letter::Processes, process.as_str().as_bytes())
}

pub(crate) fn process(cursor: Option<&str>) -> Result<Option<Name>, ApiError> {
    cursor.map(|cursor| name(Letter::Processes, cursor)).transpose()
}

pub(crate) fn after_subject(subject: &str) -> String {
    encode(Letter::Subjects, subject.as_bytes())
}

pub(crate) fn subject(cursor: Option<&str>) -> Result<Option<String>, ApiError> {
    cursor.map(|cursor| label(&text(Letter::Subjects, cursor)?)).transpose()
}

pub(crate) fn after_runtime(runtime: &str) -> String {
    encode(Letter::Runtimes, runtime.as_bytes())
}

pub(crate) fn runtime(cursor: Option<&str>) -> Result<Option<String>, ApiError> {
    cursor.map(|cursor| label(&text(Letter::Runtimes, cursor)?)).transpose()
}

pub(crate) fn after_pool(pool: &str) -> String {
    encode(Letter::Pools, pool.as_bytes())
}

pub(crate) fn pool(cursor: Option<&str>) -> Result<Option<String>, ApiError> {
    cursor.map(|cursor| label(&text(Letter::Pools, cursor)?)).transpose()
}

pub(crate) fn after_operation(operation: Uuid) -> String {
    encode(Letter::Operations, operation.as_bytes())
}

pub(crate) fn operation(cursor: Option<&str>) -> Result<Option<Uuid>, ApiError> {
    cursor.map(|cursor| id(Letter::Operations, cursor)).transpose()
}

pub(crate) fn after_timeline(position: i64) -> String {
    encode(Letter::Timeline, &position.to_be_bytes())
}

pub(crate) fn timeline(cursor: Option<&str>) -> Result<Option<i64>, ApiError> {
    cursor.map(|cursor| number(Letter::Timeline, cursor)).transpose()
}

pub(crate) fn after_eligible(ready_at: Time, subject: &str) -> String {
    encode(Letter::Eligible, &[&ready_at.micros().to_be_bytes(), subject.as_bytes()].concat())
}

pub(crate) fn eligible(cursor: Option<&str>) -> Result<Option<(Time, String)>, ApiError> {
    let position = |cursor| {
        let bytes = decode(Letter::Eligible, cursor)?;
        let (micros, subject) = bytes.split_first_chunk::<8>().ok_or_else(ApiError::invalid_cursor)?;
        let subject = String::from_utf8(subject.to_vec()).map_err(|_| ApiError::invalid_cursor())?;
        Ok((time(*micros)?, label(&subject)?))
    };
    cursor.map(position).transpose()
}

pub(crate) fn after_workflow_run(created_at: Time, run: &str) -> String {
    encode(Letter::WorkflowRuns, &[&created_at.micros().to_be_bytes(), run.as_bytes()].concat())
}

pub(crate) fn workflow_run(cursor: Option<&str>) -> Result<Option<(Time, String)>, ApiError> {
    let position = |cursor| {
        let bytes = decode(Letter::WorkflowRuns, cursor)?;
        let (micros, run) = bytes.split_first_chunk::<8>().ok_or_else(ApiError::invalid_cursor)?;
        let run = String::from_utf8(run.to_vec()).map_err(|_| ApiError::invalid_cursor())?;
        Ok((time(*micros)?, label(&run)?))
    };
    cursor.map(position).transpose()
}

/// The end of the year 9999. Neither database can store a later time, so a cursor with one is forged.
const MAX_MICROS: i64 = 253_402_300_799_000_000;

fn time(micros: [u8; 8]) -> Result<Time, ApiError> {
    match i64::from_be_bytes(micros) {
        micros @ 0..=MAX_MICROS => Ok(Time::from_micros(micros)),
        _ => Err(ApiError::invalid_cursor()),
    }
}

fn label(text: &str) -> Result<String, ApiError> {
    Label::new(text).map(|label| label.to_string()).map_err(|_| ApiError::invalid_cursor())
}

fn text(listing: Letter, cursor: &str) -> Result<String, ApiError> {
    String::from_utf8(decode(listing, cursor)?).map_err(|_| ApiError::invalid_cursor())
}

pub(crate) fn after_signature(id: Uuid) -> String {
    encode(Letter::Signatures, id.as_bytes())
}

pub(crate) fn signature(cursor: Option<&str>) -> Result<Option<Uuid>, ApiError> {
    cursor.map(|cursor| id(Letter::Signatures, cursor)).transpose()
}

pub(crate) fn after_failure(after: FailureCursor) -> String {
    encode(Letter::Failures, &[&after.last_seen_at.micros().to_be_bytes()[..], after.id.as_bytes()].concat())
}

pub(crate) fn failure(cursor: Option<&str>) -> Result<Option<FailureCursor>, ApiError> {
    let after = |cursor| {
        let position = decode(Letter::Failures, cursor)?;
        let (at, id) = position.split_first_chunk::<8>().ok_or_else(ApiError::invalid_cursor)?;
        let id = Uuid::from_slice(id).map_err(|_| ApiError::invalid_cursor())?;
        Ok(FailureCursor { last_seen_at: time(*at)?, id })
    };
    cursor.map(after).transpose()
}

fn encode(listing: Letter, position: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode([&[VERSION, listing as u8], position].concat())
}

fn name(listing: Letter, cursor: &str) -> Result<Name, ApiError> {
    Name::new(&text(listing, cursor)?).map_err(|_| ApiError::invalid_cursor())
}

fn number(listing: Letter, cursor: &str) -> Result<i64, ApiError> {
    let bytes: [u8; 8] = decode(listing, cursor)?.try_into().map_err(|_| ApiError::invalid_cursor())?;
    Ok(i64::from_be_bytes(bytes))
}

fn id(listing: Letter, cursor: &str) -> Result<Uuid, ApiError> {
    Uuid::from_slice(&decode(listing, cursor)?).map_err(|_| ApiError::invalid_cursor())
}

fn decode(listing: Letter, cursor: &str) -> Result<Vec<u8>, ApiError> {
    match URL_SAFE_NO_PAD.decode(cursor).ok().as_deref() {
        Some([VERSION, letter, position @ ..]) if *letter == listing as u8 => Ok(position.to_vec()),
        _ => Err(ApiError::invalid_cursor()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_round_trips_and_is_valid_only_for_its_listing() {
        let id = JobId::new(Uuid::from_u128(7));
        assert_eq!(job(Some(&after_job(id))).ok().flatten(), Some(id));
        assert!(worker(Some(&after_job(id))).is_err());
        let trigger = after_trigger(TriggerId::new(Uuid::from_u128(7)));
        assert!(token(Some(&trigger)).is_err(), "both hold ids, but belong to different listings");
        let position = |seconds| FailureCursor { last_seen_at: Time::from_seconds(seconds), id: Uuid::from_u128(7) };
        assert!(failure(Some(&after_failure(position(7)))).is_ok());
        for invalid in [i64::MIN, -1, i64::MAX] {
            assert!(failure(Some(&after_failure(position(invalid)))).is_err(), "no database has a time like {invalid}");
        }
        let name = Name::stored("image.scan");
        assert_eq!(queue(Some(&after_queue(&name))).ok().flatten(), Some(name));
        for bad in ["", "x", "AAAA", "💥", "AWo", &"A".repeat(10_000)] {
            assert!(job(Some(bad)).is_err(), "{bad}");
        }
    }
}
