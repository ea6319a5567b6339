//! Credentials of subject agents. A credential allows its holder to set the facts of one subject, and nothing else.
//!
//! Only the hash is stored. A subject has at most one credential; creating another revokes the previous one.

use domain::{Label, TenantId};

use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::fleet::subjects;
use crate::fleet::timeline;
use crate::fleet::timeline::Entry;
use crate::store::Store;

impl Store {
    /// Sets the credential of a subject. Returns false if the subject does not exist.
    pub async fn put_subject_credential(
        &self,
        tenant: TenantId,
        subject: Label,
        hash: [u8; 32],
        actor: String,
    ) -> Result<bool, StoreError> {
        self.write(ChangeCredential { tenant, subject, hash: Some(hash), actor }).await
    }

    /// Removes the credential of a subject, if it has one. Returns false if the subject does not exist.
    pub async fn remove_subject_credential(
        &self,
        tenant: TenantId,
        subject: Label,
        actor: String,
    ) -> Result<bool, StoreError> {
        self.write(ChangeCredential { tenant, subject, hash: None, actor }).await
    }

    /// Returns the subject that a credential belongs to.
    pub async fn subject_of_credential(&self, hash: [u8; 32]) -> Result<Option<(TenantId, Label)>, StoreError> {
        self.read(FindCredential { hash }).await
    }
}

struct ChangeCredential {
    tenant: TenantId,
    subject: Label,
    hash: Option<[u8; 32]>,
    actor: String,
}

const DELETE: Sql = Sql::both(&["delete from subject_credentials where tenant = $1 and subject = $2"]);
const INSERT: Sql = Sql::both(&["insert into subject_credentials (tenant, subject, hash, created_at, created_by)
     values ($1, $2, $3, $4, $5)"]);

impl Operation for ChangeCredential {
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

struct FindCredential {
    hash: [u8; 32],
}

const FIND: Sql = Sql::both(&["select tenant, subject from subject_credentials where hash = $1"]);

impl Operation for FindCredential {
    type Output = Option<(TenantId, Label)>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let row = tx.query_opt(&FIND, &[Param::Blob(&self.hash)]).await?;
        row.map(|row| Ok((TenantId(row.int("tenant")?), Label::stored(&row.text("subject")?)))).transpose()
    }
}
