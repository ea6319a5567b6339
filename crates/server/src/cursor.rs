//! Where the next page begins, as text that means nothing to its bearer and may change between versions.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use domain::{DeadLetterId, JobId, Label, Name, Time, TokenId, TriggerId, WorkerId};
use store::failures::list::After;
use uuid::Uuid;

use crate::error::ApiError;

/// A cursor starts with this and with a letter for its listing, so that it is never taken for another's.
const VERSION: u8 = 1;

pub(crate) fn after_job(job: JobId) -> String {
    encode(b'j', job.uuid().as_bytes())
}

pub(crate) fn job(cursor: Option<&str>) -> Result<Option<JobId>, ApiError> {
    cursor.map(|cursor| id(b'j', cursor).map(JobId::new)).transpose()
}

pub(crate) fn after_worker(worker: WorkerId) -> String {
    encode(b'w', worker.uuid().as_bytes())
}

pub(crate) fn worker(cursor: Option<&str>) -> Result<Option<WorkerId>, ApiError> {
    cursor.map(|cursor| id(b'w', cursor).map(WorkerId::new)).transpose()
}

pub(crate) fn after_trigger(trigger: TriggerId) -> String {
    encode(b't', trigger.uuid().as_bytes())
}

pub(crate) fn trigger(cursor: Option<&str>) -> Result<Option<TriggerId>, ApiError> {
    cursor.map(|cursor| id(b't', cursor).map(TriggerId::new)).transpose()
}

pub(crate) fn after_run(run: Uuid) -> String {
    encode(b'r', run.as_bytes())
}

pub(crate) fn run(cursor: Option<&str>) -> Result<Option<Uuid>, ApiError> {
    cursor.map(|cursor| id(b'r', cursor)).transpose()
}

pub(crate) fn after_dead_letter(letter: DeadLetterId) -> String {
    encode(b'd', letter.uuid().as_bytes())
}

pub(crate) fn dead_letter(cursor: Option<&str>) -> Result<Option<DeadLetterId>, ApiError> {
    cursor.map(|cursor| id(b'd', cursor).map(DeadLetterId::new)).transpose()
}

pub(crate) fn after_key(key: &str) -> String {
    encode(b'k', key.as_bytes())
}

pub(crate) fn key(cursor: Option<&str>) -> Result<Option<String>, ApiError> {
    let key = |cursor| {
        let key = String::from_utf8(decode(b'k', cursor)?).ok();
        key.filter(|key| Label::new(key).is_ok()).ok_or_else(ApiError::invalid_cursor)
    };
    cursor.map(key).transpose()
}

pub(crate) fn after_queue(queue: &Name) -> String {
    encode(b'q', queue.as_str().as_bytes())
}

pub(crate) fn queue(cursor: Option<&str>) -> Result<Option<Name>, ApiError> {
    cursor.map(|cursor| name(b'q', cursor)).transpose()
}

pub(crate) fn after_token(token: TokenId) -> String {
    encode(b't', token.uuid().as_bytes())
}

pub(crate) fn token(cursor: Option<&str>) -> Result<Option<TokenId>, ApiError> {
    cursor.map(|cursor| id(b't', cursor).map(TokenId::new)).transpose()
}

pub(crate) fn after_tenant(tenant: &Name) -> String {
    encode(b'n', tenant.as_str().as_bytes())
}

pub(crate) fn tenant(cursor: Option<&str>) -> Result<Option<Name>, ApiError> {
    cursor.map(|cursor| name(b'n', cursor)).transpose()
}

pub(crate) fn after_abandoned(job: JobId) -> String {
    encode(b'a', job.uuid().as_bytes())
}

pub(crate) fn abandoned(cursor: Option<&str>) -> Result<Option<JobId>, ApiError> {
    cursor.map(|cursor| id(b'a', cursor).map(JobId::new)).transpose()
}

/// Deliveries are listed by their number.
pub(crate) fn after_delivery(seq: i64) -> String {
    encode(b'd', &seq.to_be_bytes())
}

pub(crate) fn delivery(cursor: Option<&str>) -> Result<Option<i64>, ApiError> {
    let seq = |cursor| {
        let place: Option<[u8; 8]> = decode(b'd', cursor)?.try_into().ok();
        place.map(i64::from_be_bytes).ok_or_else(ApiError::invalid_cursor)
    };
    cursor.map(seq).transpose()
}

pub(crate) fn after_process(process: &Name) -> String {
    encode(b'p', process.as_str().as_bytes())
}

pub(crate) fn process(cursor: Option<&str>) -> Result<Option<Name>, ApiError> {
    let name = |cursor| Name::new(&text(b'p', cursor)?).map_err(|_| ApiError::invalid_cursor());
    cursor.map(name).transpose()
}

pub(crate) fn after_subject(subject: &str) -> String {
    encode(b's', subject.as_bytes())
}

pub(crate) fn subject(cursor: Option<&str>) -> Result<Option<String>, ApiError> {
    cursor.map(|cursor| label(&text(b's', cursor)?)).transpose()
}

pub(crate) fn after_runtime(runtime: &str) -> String {
    encode(b'r', runtime.as_bytes())
}

pub(crate) fn runtime(cursor: Option<&str>) -> Result<Option<String>, ApiError> {
    cursor.map(|cursor| label(&text(b'r', cursor)?)).transpose()
}

pub(crate) fn after_operation(operation: Uuid) -> String {
    encode(b'o', operation.as_bytes())
}

pub(crate) fn operation(cursor: Option<&str>) -> Result<Option<Uuid>, ApiError> {
    cursor.map(|cursor| id(b'o', cursor)).transpose()
}

pub(crate) fn after_timeline(place: i64) -> String {
    encode(b't', &place.to_be_bytes())
}

pub(crate) fn timeline(cursor: Option<&str>) -> Result<Option<i64>, ApiError> {
    let place = |cursor| {
        let bytes: Result<[u8; 8], _> = decode(b't', cursor)?.try_into();
        bytes.map(i64::from_be_bytes).map_err(|_| ApiError::invalid_cursor())
    };
    cursor.map(place).transpose()
}

pub(crate) fn after_eligible(ready_at: Time, subject: &str) -> String {
    encode(b'e', &[&ready_at.micros().to_be_bytes(), subject.as_bytes()].concat())
}

pub(crate) fn eligible(cursor: Option<&str>) -> Result<Option<(Time, String)>, ApiError> {
    let place = |cursor| {
        let bytes = decode(b'e', cursor)?;
        let (micros, subject) = bytes.split_first_chunk::<8>().ok_or_else(ApiError::invalid_cursor)?;
        let micros = i64::from_be_bytes(*micros);
        if !(0..=MICROS_MAX).contains(&micros) {
            return Err(ApiError::invalid_cursor());
        }
        let subject = String::from_utf8(subject.to_vec()).map_err(|_| ApiError::invalid_cursor())?;
        Ok((Time::from_micros(micros), label(&subject)?))
    };
    cursor.map(place).transpose()
}

/// The end of the year 9999: what no database could store was never given out.
const MICROS_MAX: i64 = 253_402_300_799_000_000;

fn label(text: &str) -> Result<String, ApiError> {
    Label::new(text).map(|label| label.to_string()).map_err(|_| ApiError::invalid_cursor())
}

fn text(listing: u8, cursor: &str) -> Result<String, ApiError> {
    String::from_utf8(decode(listing, cursor)?).map_err(|_| ApiError::invalid_cursor())
}

pub(crate) fn after_signature(id: Uuid) -> String {
    encode(b's', id.as_bytes())
}

pub(crate) fn signature(cursor: Option<&str>) -> Result<Option<Uuid>, ApiError> {
    cursor.map(|cursor| id(b's', cursor)).transpose()
}

pub(crate) fn after_failure(after: After) -> String {
    encode(b'f', &[&after.last_seen_at.micros().to_be_bytes()[..], after.id.as_bytes()].concat())
}

pub(crate) fn failure(cursor: Option<&str>) -> Result<Option<After>, ApiError> {
    let after = |cursor| {
        let place = decode(b'f', cursor)?;
        let (at, id) = place.split_at_checked(8).ok_or_else(ApiError::invalid_cursor)?;
        let at = i64::from_be_bytes(at.try_into().map_err(|_| ApiError::invalid_cursor())?);
        let id = Uuid::from_slice(id).map_err(|_| ApiError::invalid_cursor())?;
        Ok(After { last_seen_at: Time::from_micros(at), id })
    };
    cursor.map(after).transpose()
}

fn encode(listing: u8, place: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode([&[VERSION, listing], place].concat())
}

fn name(listing: u8, cursor: &str) -> Result<Name, ApiError> {
    let name = String::from_utf8(decode(listing, cursor)?).ok();
    name.and_then(|name| Name::new(&name).ok()).ok_or_else(ApiError::invalid_cursor)
}

fn id(listing: u8, cursor: &str) -> Result<Uuid, ApiError> {
    Uuid::from_slice(&decode(listing, cursor)?).map_err(|_| ApiError::invalid_cursor())
}

fn decode(listing: u8, cursor: &str) -> Result<Vec<u8>, ApiError> {
    match URL_SAFE_NO_PAD.decode(cursor).ok().as_deref() {
        Some([VERSION, of, place @ ..]) if *of == listing => Ok(place.to_vec()),
        _ => Err(ApiError::invalid_cursor()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_comes_back_as_it_went_and_fits_its_own_listing_only() {
        let id = JobId::new(Uuid::from_u128(7));
        assert_eq!(job(Some(&after_job(id))).ok().flatten(), Some(id));
        assert!(worker(Some(&after_job(id))).is_err());
        let name = Name::stored("image.scan");
        assert_eq!(queue(Some(&after_queue(&name))).ok().flatten(), Some(name));
        for bad in ["", "x", "AAAA", "💥", "AWo", &"A".repeat(10_000)] {
            assert!(job(Some(bad)).is_err(), "{bad}");
        }
    }
}
