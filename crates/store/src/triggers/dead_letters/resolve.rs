//! Resolves a dead letter. Resolution, principal and time are set together and once.

use domain::{DeadLetterId, Resolution, TenantId};
use serde_json::json;

use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::fleet::timeline;
use crate::fleet::timeline::Entry;
use crate::store::Store;
use crate::triggers::dead_letters::get::lock;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolve {
    /// Resolved now, or earlier with the same resolution.
    Done,
    /// The letter already has another resolution.
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
        self.write(ResolveDeadLetter { tenant, id, resolution, by, note }).await
    }
}

struct ResolveDeadLetter {
    tenant: TenantId,
    id: DeadLetterId,
    resolution: Resolution,
    by: String,
    note: Option<String>,
}

impl Operation for ResolveDeadLetter {
    type Output = Resolve;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Resolve, StoreError> {
        let Some(letter) = lock(tx, self.tenant, self.id).await? else { return Ok(Resolve::NotFound) };
        match letter.resolved.map(|resolved| resolved.resolution) {
            Some(current) if current == self.resolution => return Ok(Resolve::Done),
            // After a failed handler, a user can still set another resolution.
            Some(current) if current != Resolution::HandlerFailed => return Ok(Resolve::AlreadyResolved(current)),
            _ => {}
        }
        set(tx, self.tenant, self.id, self.resolution, &self.by, self.note.as_deref()).await?;
        Ok(Resolve::Done)
    }
}

const RESOLVE: Sql = Sql::both(&["update dead_letters set resolved_at = $3, resolution = $4, resolved_by = $5,
         note = coalesce($6, note)
     where id = $1 and tenant = $2"]);

/// Resolves a letter if it is unresolved. Returns true if it was.
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

/// Writes the resolution. The caller must hold the lock on the letter and have checked its state.
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
    tx.execute(&RESOLVE, &params).await?;
    let detail = json!({"dead_letter": id.uuid(), "resolution": resolution.as_str()}).to_string();
    timeline::write(tx, &[Entry::by(tenant, by, "dead_letter_resolved", detail)]).await
}
