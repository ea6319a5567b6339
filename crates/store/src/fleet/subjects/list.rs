//! Lists subjects in pages ordered by id, optionally of one kind or with an id prefix.

use domain::{Name, TenantId};

use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::fleet::backoffs;
use crate::fleet::subjects::SubjectRow;
use crate::fleet::subjects::get::Subject;
use crate::store::Store;

#[derive(Clone, Debug, Default)]
pub struct SubjectFilter {
    pub kind: Option<Name>,
    /// Prefix of the id.
    pub prefix: Option<String>,
}

impl Store {
    /// Returns up to `limit` subjects with ids after `after`.
    pub async fn list_subjects(
        &self,
        tenant: TenantId,
        filter: SubjectFilter,
        after: Option<String>,
        limit: usize,
    ) -> Result<Vec<Subject>, StoreError> {
        self.read(ListSubjects { tenant, filter, after, limit }).await
    }
}

struct ListSubjects {
    tenant: TenantId,
    filter: SubjectFilter,
    after: Option<String>,
    limit: usize,
}

const ALL: Sql = Sql::both(&["select id, kind, facts, created_at, updated_at from subjects
     where tenant = $1 and id > $2 and id >= $3 and id < $4 order by id limit $5"]);
const OF_KIND: Sql = Sql::both(&["select id, kind, facts, created_at, updated_at from subjects
     where tenant = $1 and id > $2 and id >= $3 and id < $4 and kind = $6 order by id limit $5"]);

/// Sorts after every character of an id: labels cannot contain it.
const MAX_CHAR: &str = "\u{10FFFF}";

impl Operation for ListSubjects {
    type Output = Vec<Subject>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Subject>, StoreError> {
        let from = self.filter.prefix.clone().unwrap_or_default();
        let to = format!("{from}{MAX_CHAR}");
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
