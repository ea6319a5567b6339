//! Sets facts of a subject and creates the subject if necessary. Facts that are not named do not change.

use domain::limits::{AGENT_FACT_TIMELINE_INTERVAL_S, TIMELINE_DEDUP_ENTRIES};
use domain::{Label, Name, TenantId};
use serde_json::Value;

use crate::db::codec::from_json;
use crate::db::effects::Effects;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::fleet::subjects;
use crate::fleet::subjects::eligibility;
use crate::fleet::subjects::eligibility::ProcessSelector;
use crate::fleet::subjects::facts::{FactChanges, FactsChanged};
use crate::fleet::timeline;
use crate::fleet::timeline::Entry;
use crate::store::Store;

#[derive(Clone, Debug)]
pub struct SubjectChange {
    pub id: Label,
    pub kind: Option<Name>,
    pub facts: FactChanges,
    /// Who makes the change, for the timeline.
    pub actor: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubjectPut {
    Done,
    /// Nothing was changed: the subject would exceed the maximum number of facts.
    TooManyFacts,
    /// The subject does not exist and the caller may not create it.
    NotFound,
}

impl Store {
    /// Sets facts on behalf of a user; creates the subject if it does not exist.
    pub async fn put_subject(&self, tenant: TenantId, change: SubjectChange) -> Result<SubjectPut, StoreError> {
        self.change_subject(PutSubject { tenant, change, source: FactSource::User }).await
    }

    /// Sets facts on behalf of the subject's own agent. A deleted subject is not created again.
    pub async fn report_facts(&self, tenant: TenantId, change: SubjectChange) -> Result<SubjectPut, StoreError> {
        self.change_subject(PutSubject { tenant, change, source: FactSource::Agent }).await
    }

    async fn change_subject(&self, put: PutSubject) -> Result<SubjectPut, StoreError> {
        let (outcome, effects) = self.write(put).await?;
        self.announce(&effects);
        Ok(outcome)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FactSource {
    User,
    Agent,
}

struct PutSubject {
    tenant: TenantId,
    change: SubjectChange,
    source: FactSource,
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
        let selectors = eligibility::selectors(tx, self.tenant).await?;
        let mut found = subjects::lock(tx, self.tenant, &ids).await?;
        let mut created = false;
        if found.is_empty() && self.source == FactSource::User {
            created = subjects::insert_missing(tx, self.tenant, &ids).await? > 0;
            found = subjects::lock(tx, self.tenant, &ids).await?;
        }
        let Some(mut row) = found.pop() else { return Ok((SubjectPut::NotFound, effects)) };
        let changed = row.facts.change(facts, tx.now())?;
        if changed.rejected > 0 {
            if created {
                return Err(StoreError::unexpected("one request has more facts than the maximum per subject"));
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
        if !changed.values.is_empty() && self.goes_on_timeline(tx, &changed, &selectors).await? {
            entries.push(Entry { detail: Some(changed.detail()), ..entry("facts_changed") });
        }
        timeline::write(tx, &entries).await?;
        effects.scan = eligibility::evaluate(tx, self.tenant, &rows, &selectors).await?;
        Ok((SubjectPut::Done, effects))
    }
}

const RECENT: Sql = Sql::both(&["select detail from (
         select event, at, detail from timeline where tenant = $1 and subject = $2 order by id desc limit $4) newest
     where event = 'facts_changed' and at > $3"]);

impl PutSubject {
    /// Returns true if the change belongs on the timeline. A number that an agent changes with every heartbeat is
    /// recorded at most once per `AGENT_FACT_TIMELINE_INTERVAL_S`, because the timeline has a long retention. Facts
    /// that a selector names, values that are not numbers, and changes by others are always recorded.
    async fn goes_on_timeline(
        &self,
        tx: &mut Tx<'_>,
        changed: &FactsChanged,
        selectors: &[ProcessSelector],
    ) -> Result<bool, StoreError> {
        let is_selected = |name: &Name| selectors.iter().any(|process| process.selector.names(name));
        let is_number = |value: &Option<Box<str>>| value.as_deref().is_some_and(|text| text.parse::<f64>().is_ok());
        let is_significant = |(name, value): &(Name, Option<Box<str>>)| is_selected(name) || !is_number(value);
        if self.source == FactSource::User || changed.values.iter().any(is_significant) {
            return Ok(true);
        }
        let params = [
            Param::Int(self.tenant.0),
            Param::Text(self.change.id.as_str()),
            Param::Time(tx.now().plus_s(-AGENT_FACT_TIMELINE_INTERVAL_S)),
            Param::Int(TIMELINE_DEDUP_ENTRIES as i64),
        ];
        let mut recent: Vec<Value> = Vec::new();
        for row in tx.query(&RECENT, &params).await? {
            recent.push(from_json(&row.text("detail")?).unwrap_or_default());
        }
        let is_recorded = |name: &Name| recent.iter().any(|detail| detail["facts"].get(name.as_str()).is_some());
        Ok(!changed.values.iter().all(|(name, _)| is_recorded(name)))
    }
}
