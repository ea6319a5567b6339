//! Approves or rejects an open approval of a job.

use domain::{JobId, JobState, Label, TenantId};
use serde::{Deserialize, Serialize};

use super::AskedApproval;
use super::resolve::{Resolution, resolve};
use crate::db::codec::{from_json, to_json};
use crate::db::effects::Effects;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::queue::counters::CounterDeltas;
use crate::queue::get;
use crate::queue::lanes::LaneCache;
use crate::queue::transition;
use crate::store::Store;

/// A person's answer to an approval.
#[derive(Clone, Debug)]
pub struct ApprovalAnswer {
    pub job: JobId,
    pub key: Label,
    pub approve: bool,
    pub note: Option<String>,
    pub principal: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answered {
    /// The answer is recorded, by this request or by an earlier one with the same answer.
    Recorded(String),
    /// Another answer, or a timeout, is recorded.
    AlreadyAnswered,
    AlreadyEnded(JobState),
    NotFound,
}

/// The recorded answer.
#[derive(Serialize, Deserialize)]
struct RecordedAnswer {
    approved: bool,
    by: String,
    /// RFC 3339.
    at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

impl Store {
    /// The right that the answer to an approval needs. `None`: the job has no such approval.
    pub async fn approval_right(&self, tenant: TenantId, job: JobId, key: Label) -> Result<Option<String>, StoreError> {
        self.read(ReadApproval { tenant, job, key }).await
    }

    /// Records the answer to an approval. Returns after the commit.
    pub async fn answer_approval(&self, tenant: TenantId, answer: ApprovalAnswer) -> Result<Answered, StoreError> {
        let (answered, effects) = self.write(AnswerApproval { tenant, answer, lanes: self.lanes().clone() }).await?;
        self.announce(&effects);
        Ok(answered)
    }
}

const ENTRY: Sql = Sql::both(&["select position, seq, input, result from journal_entries
     where job = $1 and key = $2 and tenant = $3 and op = 'approval'"]);

struct ReadApproval {
    tenant: TenantId,
    job: JobId,
    key: Label,
}

impl Operation for ReadApproval {
    type Output = Option<String>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<String>, StoreError> {
        let params = [Param::from(self.job), Param::Text(self.key.as_str()), Param::Int(self.tenant.0)];
        let Some(row) = tx.query_opt(&ENTRY, &params).await? else { return Ok(None) };
        let asked: AskedApproval = from_json(&row.text("input")?)?;
        Ok(Some(asked.right))
    }
}

struct AnswerApproval {
    tenant: TenantId,
    answer: ApprovalAnswer,
    lanes: LaneCache,
}

impl Operation for AnswerApproval {
    const READS_TRIGGER_VERSION: bool = true;
    type Output = (Answered, Effects);

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(Answered, Effects), StoreError> {
        let ApprovalAnswer { job, key, approve, note, principal } = &self.answer;
        let (mut counters, mut effects) = (CounterDeltas::default(), Effects::default());
        let live = transition::load(tx, &[*job]).await?.remove(job).filter(|live| live.tenant == self.tenant);
        let params = [Param::from(*job), Param::Text(key.as_str()), Param::Int(self.tenant.0)];
        let Some(row) = tx.query_opt(&ENTRY, &params).await? else { return Ok((Answered::NotFound, effects)) };
        if row.opt_int("seq")?.is_some() {
            let Some(recorded) = row.opt_text("result")? else { return Ok((Answered::AlreadyAnswered, effects)) };
            let is_same = from_json::<RecordedAnswer>(&recorded)?.approved == *approve;
            return Ok((if is_same { Answered::Recorded(recorded) } else { Answered::AlreadyAnswered }, effects));
        }
        if live.is_none() {
            let ended = get::find(tx, self.tenant, *job).await?;
            return Ok((ended.map_or(Answered::NotFound, |ended| Answered::AlreadyEnded(ended.state)), effects));
        }
        let at = jiff::Timestamp::from_microsecond(tx.now().micros()).unwrap_or(jiff::Timestamp::MAX);
        let answer =
            RecordedAnswer { approved: *approve, by: principal.clone(), at: at.to_string(), note: note.clone() };
        let recorded = to_json(&answer);
        let resolution = Resolution { job: *job, position: row.int("position")?, outcome: Ok(recorded.clone()) };
        resolve(tx, &self.lanes, &[resolution], &mut counters, &mut effects).await?;
        transition::close(tx, &self.lanes, counters, &mut effects).await?;
        Ok((Answered::Recorded(recorded), effects))
    }
}
