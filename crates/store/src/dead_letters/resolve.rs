//! Says how a dead letter was dealt with: resolution, who and when, set together and once (T7).

use domain::{DeadLetterId, Resolution, TenantId};

use crate::dead_letters::get::lock;
use crate::error::StoreError;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolve {
    /// Now, or before in the same way: saying it twice is once.
    Done,
    /// It was dealt with otherwise before.
    AlreadyResolved(Resolution),
    NotFound,
}

impl Store {
    pub async fn resolve_dead_letter(
        &self,
        tenant: TenantId,
        id: DeadLetterId,
        resolution: Resolution,
        by: String,
        note: Option<String>,
    ) -> Result<Resolve, StoreError> {
        self.write(ResolveOne { tenant, id, resolution, by, note }).await
    }
}

struct ResolveOne {
    tenant: TenantId,
    id: DeadLetterId,
    resolution: Resolution,
    by: String,
    note: Option<String>,
}

impl Operation for ResolveOne {
    type Output = Resolve;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Resolve, StoreError> {
        let Some(letter) = lock(tx, self.tenant, self.id).await? else { return Ok(Resolve::NotFound) };
        match letter.resolved.map(|resolved| resolved.resolution) {
            Some(before) if before == self.resolution => return Ok(Resolve::Done),
            // Whoever looked into a handler's failure may say that it is settled.
            Some(before) if before != Resolution::HandlerFailed => return Ok(Resolve::AlreadyResolved(before)),
            _ => {}
        }
        set(tx, self.tenant, self.id, self.resolution, &self.by, self.note.as_deref()).await?;
        Ok(Resolve::Done)
    }
}

const RESOLVE: Sql = Sql::both(&["update dead_letters set resolved_at = $3, resolution = $4, resolved_by = $5,
         note = coalesce($6, note)
     where id = $1 and tenant = $2"]);

/// Resolves a letter that nobody has dealt with. Gives whether it did.
pub(crate) async fn resolve(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    id: DeadLetterId,
    resolution: Resolution,
    by: &str,
    note: Option<&str>,
) -> Result<bool, StoreError> {
    match lock(tx, tenant, id).await? {
        Some(letter) if letter.resolved.is_none() => {
            set(tx, tenant, id, resolution, by, note).await?;
            Ok(true)
        }
        _ => Ok(false),
    }
}

pub(crate) async fn set(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    id: DeadLetterId,
    resolution: Resolution,
    by: &str,
    note: Option<&str>,
) -> Result<(), StoreError> {
    let params = [
        Param::Uuid(id.uuid()),
        Param::Int(tenant.0),
        Param::Time(tx.now()),
        Param::Text(resolution.as_str()),
        Param::Text(by),
        Param::text(note),
    ];
    tx.execute(&RESOLVE, &params).await.map(|_| ())
}
