//! Subjects by id, page by page; of one kind or with ids that begin alike, if asked.

use domain::{Name, TenantId};

use crate::backoffs;
use crate::error::StoreError;
use crate::store::Store;
use crate::subjects::SubjectRow;
use crate::subjects::get::Subject;
use crate::tx::{Operation, Param, Sql, Tx};

#[derive(Clone, Debug, Default)]
pub struct SubjectFilter {
    pub kind: Option<Name>,
    /// The beginning of the id.
    pub prefix: Option<String>,
}

impl Store {
    /// Those after `after`.
    pub async fn list_subjects(
        &self,
        tenant: TenantId,
        filter: SubjectFilter,
        after: Option<String>,
        limit: usize,
    ) -> Result<Vec<Subject>, StoreError> {
        self.read(List { tenant, filter, after, limit }).await
    }
}

struct List {
    tenant: TenantId,
    filter: SubjectFilter,
    after: Option<String>,
    limit: usize,
}

const ALL: Sql = Sql::both(&["select id, kind, facts, created_at, updated_at from subjects
     where tenant = $1 and id > $2 and id >= $3 and id < $4 order by id limit $5"]);
const OF_KIND: Sql = Sql::both(&["select id, kind, facts, created_at, updated_at from subjects
     where tenant = $1 and id > $2 and id >= $3 and id < $4 and kind = $6 order by id limit $5"]);

/// After every id that there may be: no label holds this character.
const LAST: &str = "\u{10FFFF}";

impl Operation for List {
    type Output = Vec<Subject>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Subject>, StoreError> {
        let from = self.filter.prefix.clone().unwrap_or_default();
        let to = format!("{from}{LAST}");
        let params = [
            Param::Int(self.tenant.0),
            Param::Text(self.after.as_deref().unwrap_or_default()),
            Param::Text(&from),
            Param::Text(&to),
            Param::Int(self.limit as i64),
            Param::text(self.filter.kind.as_ref().map(Name::as_str)),
        ];
        let rows = match self.filter.kind {
            Some(_) => tx.query(&OF_KIND, &params).await?,
            None => tx.query(&ALL, &params[..5]).await?,
        };
        let rows = rows.iter().map(SubjectRow::read).collect::<Result<Vec<_>, _>>()?;
        let ids: Vec<&str> = rows.iter().map(|row| row.id.as_str()).collect();
        let mut backoffs = backoffs::of_subjects(tx, self.tenant, &ids).await?;
        let subject = |row: SubjectRow| {
            let backoffs = backoffs.remove(&row.id).unwrap_or_default();
            Subject::of(row, backoffs)
        };
        Ok(rows.into_iter().map(subject).collect())
    }
}
