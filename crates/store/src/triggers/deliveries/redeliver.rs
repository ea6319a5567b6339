//! Sends a delivery again on request: at once, with a full set of attempts and under the same id. Its dead letter becomes
//! replayed.

use domain::limits::DELIVERY_GIVE_UP_S;
use domain::{DeadLetterId, DeliveryId, TenantId};

use crate::db::notifier::Topic;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;
use crate::triggers::dead_letters::replay::mark_replayed;
use crate::triggers::deliveries::list::{WholeDelivery, find};

impl Store {
    /// Redelivers and returns the resulting delivery. Returns `None` if it does not exist. A delivery with an attempt in
    /// progress is returned unchanged.
    pub async fn redeliver(
        &self,
        tenant: TenantId,
        id: DeliveryId,
        by: String,
    ) -> Result<Option<WholeDelivery>, StoreError> {
        let found = self.write(Redeliver { tenant, id, by }).await?;
        self.notifier().notify_local(&Topic::Deliveries);
        Ok(found)
    }
}

struct Redeliver {
    tenant: TenantId,
    id: DeliveryId,
    by: String,
}

const ARM: Sql = Sql::both(&["update deliveries set state = 'pending', due_at = $3, ended_at = null, failures = 0,
         wait_s = null, tries_left = max_attempts, give_up_at = $4
     where id = $1 and tenant = $2 and leased_at is null returning endpoint, letter"]);
// Close the circuit: the request implies that the receiver is available again.
const TRY_AGAIN: Sql = Sql::both(&["update endpoints set open_until = null where id = $1"]);

impl Operation for Redeliver {
    type Output = Option<WholeDelivery>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<WholeDelivery>, StoreError> {
        let now = tx.now();
        let params = [
            Param::Uuid(self.id.uuid()),
            Param::Int(self.tenant.0),
            Param::Time(now),
            Param::Time(now.plus_s(DELIVERY_GIVE_UP_S)),
        ];
        if let Some(row) = tx.query_opt(&ARM, &params).await? {
            tx.execute(&TRY_AGAIN, &[Param::Int(row.int("endpoint")?)]).await?;
            if let Some(letter) = row.opt_uuid("letter")? {
                let letter = DeadLetterId::new(letter);
                mark_replayed(tx, self.tenant, letter, self.id.uuid(), &self.by).await?;
            }
        }
        find(tx, self.tenant, self.id).await
    }
}
