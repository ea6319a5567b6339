//! Sets facts of a subject, and makes it if need be. What is not named stays.

use domain::limits::{AGENT_FACT_TOLD_S, LATELY_TOLD};
use domain::{Label, Name, TenantId};
use serde_json::Value;

use crate::codec::from_json;
use crate::effects::Effects;
use crate::error::StoreError;
use crate::store::Store;
use crate::subjects;
use crate::subjects::facts::{Changed, FactChanges};
use crate::subjects::standings::{self, ProcessSelector};
use crate::timeline::{self, Entry};
use crate::tx::{Operation, Param, Sql, Tx};

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
        if !changed.values.is_empty() && self.is_told(tx, &changed, &selectors).await? {
            entries.push(Entry { detail: Some(changed.detail()), ..entry("facts_changed") });
        }
        timeline::write(tx, &entries).await?;
        effects.scan = standings::judge(tx, self.tenant, &rows, &selectors).await?;
        Ok((SubjectPut::Done, effects))
    }
}

const LATELY: Sql = Sql::both(&["select detail from (
         select event, at, detail from timeline where tenant = $1 and subject = $2 order by id desc limit $4) newest
     where event = 'facts_changed' and at > $3"]);

impl PutSubject {
    /// A number that changes with every heartbeat is told now and then: the timeline is kept for long. What processes go by,
    /// what is no number and what others say is always told.
    async fn is_told(
        &self,
        tx: &mut Tx<'_>,
        changed: &Changed,
        selectors: &[ProcessSelector],
    ) -> Result<bool, StoreError> {
        let counts = |name: &Name| selectors.iter().any(|process| process.selector.names(name));
        let is_figure = |value: &Option<Box<str>>| value.as_deref().is_some_and(|text| text.parse::<f64>().is_ok());
        let is_news = |(name, value): &(Name, Option<Box<str>>)| counts(name) || !is_figure(value);
        if self.make == Make::IfMissing || changed.values.iter().any(is_news) {
            return Ok(true);
        }
        let params = [
            Param::Int(self.tenant.0),
            Param::Text(self.change.id.as_str()),
            Param::Time(tx.now().plus_s(-AGENT_FACT_TOLD_S)),
            Param::Int(LATELY_TOLD as i64),
        ];
        let mut lately: Vec<Value> = Vec::new();
        for row in tx.query(&LATELY, &params).await? {
            lately.push(from_json(&row.text(0)?).unwrap_or_default());
        }
        let told = |name: &Name| lately.iter().any(|detail| detail["facts"].get(name.as_str()).is_some());
        Ok(!changed.values.iter().all(|(name, _)| told(name)))
    }
}
