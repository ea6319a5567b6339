//! Forgets what signals and failures are past keeping (S10).

use domain::Time;
use domain::limits::{
    FAILURE_HOURS_KEPT_S, FAILURES_KEPT_S, MAINTENANCE_ROWS, SIGNAL_KEPT_S, SIGNATURE_DOUBTFUL, SIGNATURE_UNTOUCHED_S,
};
use uuid::Uuid;

use crate::error::StoreError;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SignalsPruned {
    pub signals: u64,
    pub failures: u64,
    pub signatures: u64,
}

impl Store {
    /// One bounded round: signals of jobs that ended a day ago, groups that nobody saw for long, signatures in doubt.
    pub async fn prune_signals(&self) -> Result<SignalsPruned, StoreError> {
        let pruned = self.write(PruneSignals).await?;
        if pruned.signatures > 0 {
            self.kept_signatures().forget_all();
        }
        Ok(pruned)
    }
}

struct PruneSignals;

// Ids carry the time of creation: what was created after the cut cannot have ended before it.
const SIGNALS: Sql = Sql::both(&["delete from signals where job in (
         select s.job from signals s left join ended e on e.id = s.job left join jobs j on j.id = s.job
         where s.job < $1 and j.id is null and (e.id is null or e.finished_at < $2) order by s.job limit $3)"]);
const OLD_GROUPS: Sql = Sql::both(&["select id from failure_groups where last_seen_at < $1 limit 100"]);
const HOURS: Sql = Sql::both(&["delete from failure_hours where hour_at < $1"]);
const DROP_SUBJECTS: Sql = Sql::both(&["delete from failure_subjects where group_id = $1"]);
const DROP_HOURS: Sql = Sql::both(&["delete from failure_hours where group_id = $1"]);
const DROP_JOBS: Sql = Sql::both(&["delete from failure_jobs where group_id = $1"]);
const DROP_GROUP: Sql = Sql::both(&["delete from failure_groups where id = $1"]);
const DOUBTFUL: Sql = Sql::both(&["update signatures set enabled = $3, updated_at = $4
     where enabled and confidence < $1 and updated_at < $2 and coalesce(last_match_at, created_at) < $2"]);
// What was learnt fades while nothing matches it: half as sure after two weeks.
const FADE: Sql = Sql::both(&["select id, samples, last_match_at from signatures
     where status = 'proposed' and enabled and last_match_at < $1 limit 1000"]);
const FADED: Sql = Sql::both(&["update signatures set confidence = $2 where id = $1"]);
const LOG: Sql = Sql::both(&["insert into prunings (at, kind, rows_pruned, why) values ($1, $2, $3, $4)"]);

impl Operation for PruneSignals {
    type Output = SignalsPruned;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<SignalsPruned, StoreError> {
        let now = tx.now();
        let cut = now.plus_s(-SIGNAL_KEPT_S);
        let newest = uuid::Builder::from_unix_timestamp_millis(cut.millis().max(0) as u64, &[0xff; 10]).into_uuid();
        let params = [Param::Uuid(newest), Param::Time(cut), Param::Int(MAINTENANCE_ROWS as i64)];
        let signals = tx.execute(&SIGNALS, &params).await?;
        let groups = tx.query(&OLD_GROUPS, &[Param::Time(now.plus_s(-FAILURES_KEPT_S))]).await?;
        let groups: Vec<Uuid> = groups.iter().map(|row| row.uuid(0)).collect::<Result<_, _>>()?;
        for group in &groups {
            for sql in [&DROP_SUBJECTS, &DROP_HOURS, &DROP_JOBS, &DROP_GROUP] {
                tx.execute(sql, &[Param::Uuid(*group)]).await?;
            }
        }
        tx.execute(&HOURS, &[Param::Time(now.plus_s(-FAILURE_HOURS_KEPT_S))]).await?;
        self.fade(tx, now).await?;
        let untouched = Param::Time(now.plus_s(-SIGNATURE_UNTOUCHED_S));
        let params = [Param::Real(SIGNATURE_DOUBTFUL), untouched, Param::Bool(false), Param::Time(now)];
        let signatures = tx.execute(&DOUBTFUL, &params).await?;
        for (kind, count, why) in [
            ("signals", signals, format!("signals of ended jobs are kept {SIGNAL_KEPT_S} s")),
            ("failures", groups.len() as u64, format!("failure groups are kept {FAILURES_KEPT_S} s after the last")),
            (
                "signatures",
                signatures,
                format!("disabled: under {SIGNATURE_DOUBTFUL}, untouched {SIGNATURE_UNTOUCHED_S} s"),
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
    async fn fade(&self, tx: &mut Tx<'_>, now: Time) -> Result<(), StoreError> {
        for row in tx.query(&FADE, &[Param::Time(now.plus_s(-86_400))]).await? {
            let days = now.ms_since(row.time(2)?) as f64 / 86_400_000.0;
            let sure = domain::signature::confidence(row.int(1)?.max(0) as u64, days);
            tx.execute(&FADED, &[Param::Uuid(row.uuid(0)?), Param::Real(sure)]).await?;
        }
        Ok(())
    }
}
