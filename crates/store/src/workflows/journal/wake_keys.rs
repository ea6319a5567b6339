//! Rejects a suspend that names a key which the journal does not have: the job would never wake. The check runs before
//! anything is settled. Entries are never deleted from a live journal, so its answer stays true.

use domain::{Epoch, JobId, Label, WorkerId};

use crate::db::tx::{Column, Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::queue::settle::{End, Outcome};
use crate::store::Store;

impl Store {
    /// Returns the first missing key among this worker's outcomes, with the index of its outcome. Queries the database
    /// only if some outcome suspends its job.
    pub(crate) async fn missing_wake_key(
        &self,
        worker: WorkerId,
        outcomes: &[Outcome],
    ) -> Result<Option<(usize, Label)>, StoreError> {
        let mut keys: Vec<(usize, JobId, Epoch, Label)> = Vec::new();
        for (number, outcome) in outcomes.iter().enumerate() {
            if let End::Suspend(wake) = &outcome.end {
                keys.extend(wake.keys.iter().map(|key| (number, outcome.job, outcome.epoch, key.clone())));
            }
        }
        if keys.is_empty() {
            return Ok(None);
        }
        self.read(FindMissingKey { worker, keys }).await
    }
}

struct FindMissingKey {
    worker: WorkerId,
    keys: Vec<(usize, JobId, Epoch, Label)>,
}

// Only jobs that the worker has claimed: outcomes for other jobs get their own status.
const MISSING: Sql = Sql::new(
    &["select $4 as place from jobs j where j.id = $1 and j.epoch = $2 and j.worker = $5
           and not exists (select 1 from journal_entries e where e.job = j.id and e.key = $3)"],
    "select n.place from unnest($1::uuid[], $2::bigint[], $3::text[], $4::bigint[]) as n(job, epoch, key, place)
     join jobs j on j.id = n.job and j.epoch = n.epoch and j.worker = $5
     where not exists (select 1 from journal_entries e where e.job = j.id and e.key = n.key)",
);

impl Operation for FindMissingKey {
    type Output = Option<(usize, Label)>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<(usize, Label)>, StoreError> {
        let columns = [
            Column::jobs(self.keys.iter().map(|(_, job, ..)| *job)),
            Column::ints(self.keys.iter().map(|(.., epoch, _)| epoch.0)),
            Column::texts(self.keys.iter().map(|(.., key)| key.as_str())),
            Column::ints((0..self.keys.len()).map(|place| place as i64)),
        ];
        let rows = tx.query_each(&MISSING, &columns, &[Param::from(self.worker)]).await?;
        let places = rows.iter().map(|row| row.int("place")).collect::<Result<Vec<_>, _>>()?;
        let first = places.into_iter().min().map(|place| &self.keys[place as usize]);
        Ok(first.map(|(number, .., key)| (*number, key.clone())))
    }
}
