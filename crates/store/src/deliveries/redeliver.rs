//! A person wants a delivery sent again: at once, with a fresh set of attempts, under the same id (Q10). The dead letter
//! it left is replayed by that.

use domain::limits::DELIVERY_GIVE_UP_S;
use domain::{DeadLetterId, DeliveryId, TenantId};

use crate::dead_letters::replay::replayed_as;
use crate::deliveries::list::{WholeDelivery, find};
use crate::error::StoreError;
use crate::hints::Topic;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

impl Store {
    /// The delivery as it stands then; nothing when there is none. One that is under way is left alone.
    pub async fn redeliver(
        &self,
        tenant: TenantId,
        id: DeliveryId,
        by: String,
    ) -> Result<Option<WholeDelivery>, StoreError> {
        let found = self.write(Redeliver { tenant, id, by }).await?;
        self.hints().wake(&Topic::Deliveries);
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
// Whoever asks has reason to think that the receiver is back.
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
            tx.execute(&TRY_AGAIN, &[Param::Int(row.int(0)?)]).await?;
            if let Some(letter) = row.opt_uuid(1)? {
                let letter = DeadLetterId::new(letter);
                replayed_as(tx, self.tenant, letter, self.id.uuid(), &self.by).await?;
            }
        }
        find(tx, self.tenant, self.id).await
    }
}
