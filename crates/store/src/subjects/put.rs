//! Sets facts of a subject, and makes it if need be. What is not named stays.

use domain::{Label, Name, TenantId};

use crate::effects::Effects;
use crate::error::StoreError;
use crate::store::Store;
use crate::subjects::facts::FactChanges;
use crate::subjects::{self, standings};
use crate::timeline::{self, Entry};
use crate::tx::{Operation, Tx};

#[derive(Clone, Debug)]
pub struct SubjectChange {
    pub id: Label,
    pub kind: Option<Name>,
    pub facts: FactChanges,
    /// Who says so.
    pub actor: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubjectPut {
    Done,
    /// Nothing was changed: it would have more facts than a subject may have.
    TooManyFacts,
    /// There is no such subject, and this was not to make one.
    NotFound,
}

impl Store {
    pub async fn put_subject(&self, tenant: TenantId, change: SubjectChange) -> Result<SubjectPut, StoreError> {
        self.change_subject(PutSubject { tenant, change, make: Make::IfMissing }).await
    }

    /// As its own agent: a subject that is gone does not come back.
    pub async fn report_facts(&self, tenant: TenantId, change: SubjectChange) -> Result<SubjectPut, StoreError> {
        self.change_subject(PutSubject { tenant, change, make: Make::Never }).await
    }

    async fn change_subject(&self, put: PutSubject) -> Result<SubjectPut, StoreError> {
        let (answer, effects) = self.write(put).await?;
        self.announce(&effects);
        Ok(answer)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Make {
    IfMissing,
    Never,
}

struct PutSubject {
    tenant: TenantId,
    change: SubjectChange,
    make: Make,
}

impl Operation for PutSubject {
    type Output = (SubjectPut, Effects);

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let mut effects = Effects::default();
        let SubjectChange { id, kind, facts, actor } = &self.change;
        let ids = [id.as_str()];
        let selectors = standings::selectors(tx, self.tenant).await?;
        let mut found = subjects::lock(tx, self.tenant, &ids).await?;
        let mut created = false;
        if found.is_empty() && self.make == Make::IfMissing {
            created = subjects::make(tx, self.tenant, &ids).await? > 0;
            found = subjects::lock(tx, self.tenant, &ids).await?;
        }
        let Some(mut row) = found.pop() else { return Ok((SubjectPut::NotFound, effects)) };
        let changed = row.facts.change(facts, tx.now())?;
        if changed.left_out > 0 {
            if created {
                return Err(StoreError::unexpected("one request has more facts than a subject may have"));
            }
            return Ok((SubjectPut::TooManyFacts, effects));
        }
        if let Some(kind) = kind {
            row.kind = Some(kind.to_string());
        }
        let rows = [row];
        subjects::write(tx, self.tenant, &rows).await?;
        let entry = |event| Entry { actor: Some(actor), ..Entry::of_subject(self.tenant, id.as_str(), event) };
        let mut entries = Vec::new();
        if created {
            entries.push(entry("created"));
        }
        if !changed.values.is_empty() {
            entries.push(Entry { detail: Some(changed.detail()), ..entry("facts_changed") });
        }
        timeline::write(tx, &entries).await?;
        effects.scan = standings::judge(tx, self.tenant, &rows, &selectors).await?;
        Ok((SubjectPut::Done, effects))
    }
}
