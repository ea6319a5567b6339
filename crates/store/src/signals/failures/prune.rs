//! Deletes signals and failure groups past their retention, lowers the confidence of learned signatures without recent
//! matches, and disables stale ones. Called by the prune task.

use domain::Time;
use domain::limits::{
    FAILURE_HOURS_RETENTION_S, FAILURE_RETENTION_S, MAINTENANCE_ROWS, SIGNAL_RETENTION_S, SIGNATURE_MIN_CONFIDENCE,
    SIGNATURE_STALE_S,
};
use uuid::Uuid;

use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SignalsPruned {
    pub signals: u64,
    pub failures: u64,
    pub signatures: u64,
}

impl Store {
    /// Runs one bounded batch.
    pub async fn prune_signals(&self) -> Result<SignalsPruned, StoreError> {
        let pruned = self.write(PruneSignals).await?;
        if pruned.signatures > 0 {
            self.signature_cache().invalidate_all();
        }
        Ok(pruned)
    }
}

struct PruneSignals;

// Job ids are UUIDv7 and contain the creation time. A job created after the cutoff cannot have ended before it.
const SIGNALS: Sql = Sql::both(&["delete from signals where job in (
         select s.job from signals s left join ended e on e.id = s.job left join jobs j on j.id = s.job
         where s.job < $1 and j.id is null and (e.id is null or e.finished_at < $2) order by s.job limit $3)"]);
const OLD_GROUPS: Sql = Sql::both(&["select id from failure_groups where last_seen_at < $1 limit 100"]);
const HOURS: Sql = Sql::both(&["delete from failure_hours where hour_at < $1"]);
const DROP_SUBJECTS: Sql = Sql::both(&["delete from failure_subjects where group_id = $1"]);
const DROP_HOURS: Sql = Sql::both(&["delete from failure_hours where group_id = $1"]);
const DROP_JOBS: Sql = Sql::both(&["delete from failure_jobs where group_id = $1"]);
const DROP_GROUP: Sql = Sql::both(&["delete from failure_groups where id = $1"]);
const DISABLE_STALE: Sql = Sql::both(&["update signatures set enabled = $3, updated_at = $4
     where enabled and confidence < $1 and updated_at < $2 and coalesce(last_match_at, created_at) < $2"]);
// The confidence of a learned signature decays while nothing matches it, with a half-life of two weeks.
const DECAYING: Sql = Sql::both(&["select id, samples, last_match_at from signatures
     where status = 'proposed' and enabled and last_match_at < $1 limit 1000"]);
const SET_CONFIDENCE: Sql = Sql::both(&["update signatures set confidence = $2 where id = $1"]);
const LOG: Sql = Sql::both(&["insert into prunings (at, kind, rows_pruned, why) values ($1, $2, $3, $4)"]);

impl Operation for PruneSignals {
    type Output = SignalsPruned;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<SignalsPruned, StoreError> {
        let now = tx.now();
        let cutoff = now.plus_s(-SIGNAL_RETENTION_S);
        let newest = uuid::Builder::from_unix_timestamp_millis(cutoff.millis().max(0) as u64, &[0xff; 10]).into_uuid();
        let params = [Param::Uuid(newest), Param::Time(cutoff), Param::Int(MAINTENANCE_ROWS as i64)];
        let signals = tx.execute(&SIGNALS, &params).await?;
        let groups = tx.query(&OLD_GROUPS, &[Param::Time(now.plus_s(-FAILURE_RETENTION_S))]).await?;
        let groups: Vec<Uuid> = groups.iter().map(|row| row.uuid("id")).collect::<Result<_, _>>()?;
        for group in &groups {
            for sql in [&DROP_SUBJECTS, &DROP_HOURS, &DROP_JOBS, &DROP_GROUP] {
                tx.execute(sql, &[Param::Uuid(*group)]).await?;
            }
        }
        tx.execute(&HOURS, &[Param::Time(now.plus_s(-FAILURE_HOURS_RETENTION_S))]).await?;
        self.decay(tx, now).await?;
        let stale_since = Param::Time(now.plus_s(-SIGNATURE_STALE_S));
        let params = [Param::Real(SIGNATURE_MIN_CONFIDENCE), stale_since, Param::Bool(false), Param::Time(now)];
        let signatures = tx.execute(&DISABLE_STALE, &params).await?;
        for (kind, count, why) in [
            ("signals", signals, format!("signal retention is {SIGNAL_RETENTION_S} s after the job's end")),
            (
                "failures",
                groups.len() as u64,
                format!("failure group retention is {FAILURE_RETENTION_S} s after the last failure"),
            ),
            (
                "signatures",
                signatures,
                format!("disabled: confidence under {SIGNATURE_MIN_CONFIDENCE}, unchanged for {SIGNATURE_STALE_S} s"),
            ),
        ] {
            if count > 0 {
                let params = [Param::Time(now), Param::Text(kind), Param::Int(count as i64), Param::Text(&why)];
                tx.execute(&LOG, &params).await?;
            }
        }
        Ok(SignalsPruned { signals, failures: groups.len() as u64, signatures })
    }
}

impl PruneSignals {
    /// Decays the confidence of learned signatures that did not match for a day.
    async fn decay(&self, tx: &mut Tx<'_>, now: Time) -> Result<(), StoreError> {
        for row in tx.query(&DECAYING, &[Param::Time(now.plus_s(-86_400))]).await? {
            let days = now.ms_since(row.time("last_match_at")?) as f64 / 86_400_000.0;
            let confidence = domain::signals::signature::confidence(row.int("samples")?.max(0) as u64, days);
            tx.execute(&SET_CONFIDENCE, &[Param::Uuid(row.uuid("id")?), Param::Real(confidence)]).await?;
        }
        Ok(())
    }
}
