//! What a subject's own agent shows to set that subject's facts, and can do nothing else with (W8).
//!
//! Only the hash is stored. A subject has one; making another ends the one before.

use domain::{Label, TenantId};

use crate::error::StoreError;
use crate::store::Store;
use crate::subjects;
use crate::timeline::{self, Entry};
use crate::tx::{Operation, Param, Sql, Tx};

impl Store {
    /// Whether there is such a subject.
    pub async fn put_subject_credential(
        &self,
        tenant: TenantId,
        subject: Label,
        hash: [u8; 32],
        actor: String,
    ) -> Result<bool, StoreError> {
        self.write(Change { tenant, subject, hash: Some(hash), actor }).await
    }

    /// Whether there is such a subject.
    pub async fn remove_subject_credential(
        &self,
        tenant: TenantId,
        subject: Label,
        actor: String,
    ) -> Result<bool, StoreError> {
        self.write(Change { tenant, subject, hash: None, actor }).await
    }

    /// Whose agent this is.
    pub async fn subject_of_credential(&self, hash: [u8; 32]) -> Result<Option<(TenantId, Label)>, StoreError> {
        self.read(Find { hash }).await
    }
}

struct Change {
    tenant: TenantId,
    subject: Label,
    hash: Option<[u8; 32]>,
    actor: String,
}

const DELETE: Sql = Sql::both(&["delete from subject_credentials where tenant = $1 and subject = $2"]);
const INSERT: Sql = Sql::both(&["insert into subject_credentials (tenant, subject, hash, created_at, created_by)
     values ($1, $2, $3, $4, $5)"]);

impl Operation for Change {
    type Output = bool;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        let subject = self.subject.as_str();
        if subjects::lock(tx, self.tenant, &[subject]).await?.is_empty() {
            return Ok(false);
        }
        let id = [Param::Int(self.tenant.0), Param::Text(subject)];
        let removed = tx.execute(&DELETE, &id).await?;
        let event = match &self.hash {
            Some(hash) => {
                let now = Param::Time(tx.now());
                tx.execute(&INSERT, &[id[0], id[1], Param::Blob(hash), now, Param::Text(&self.actor)]).await?;
                "credential_made"
            }
            None if removed == 0 => return Ok(true),
            None => "credential_removed",
        };
        let entry = Entry { actor: Some(&self.actor), ..Entry::of_subject(self.tenant, subject, event) };
        timeline::write(tx, &[entry]).await?;
        Ok(true)
    }
}

struct Find {
    hash: [u8; 32],
}

const FIND: Sql = Sql::both(&["select tenant, subject from subject_credentials where hash = $1"]);

impl Operation for Find {
    type Output = Option<(TenantId, Label)>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let row = tx.query_opt(&FIND, &[Param::Blob(&self.hash)]).await?;
        row.map(|row| Ok((TenantId(row.int(0)?), Label::stored(&row.text(1)?)))).transpose()
    }
}
