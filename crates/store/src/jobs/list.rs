//! Pages of jobs, newest first, by any filter (Q13).
//!
//! Every look is bounded. A filter drives the look through the index it has (tag, subject, run, error code, state, lane);
//! what has none is applied to a window of the newest rows, and the page says `partial` when the window was too small.

use std::collections::BTreeMap;

use domain::limits::SCAN_ROWS;
use domain::{JobId, JobState, TenantId, Time};
use uuid::Uuid;

use crate::error::StoreError;
use crate::jobs::get::{StoredJob, read};
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

#[derive(Clone, Debug, Default)]
pub struct JobFilter {
    pub state: Option<JobState>,
    pub queue: Option<String>,
    pub kind: Option<String>,
    pub affinity: Option<String>,
    pub subject: Option<String>,
    pub run: Option<String>,
    pub tag: Option<String>,
    pub since: Option<Time>,
    pub until: Option<Time>,
    /// Start of a kind, tag, unique key or error code, or anything inside a payload.
    pub text: Option<String>,
}

#[derive(Clone, Debug)]
pub struct JobPage {
    pub jobs: Vec<StoredJob>,
    /// Where the next page begins; nothing on the last.
    pub next: Option<JobId>,
    /// More may match than was looked at.
    pub partial: bool,
}

impl Store {
    pub async fn list_jobs(
        &self,
        tenant: TenantId,
        filter: JobFilter,
        before: Option<JobId>,
        limit: usize,
    ) -> Result<JobPage, StoreError> {
        self.read(List { tenant, filter, before, limit }).await
    }
}

struct List {
    tenant: TenantId,
    filter: JobFilter,
    before: Option<JobId>,
    limit: usize,
}

/// Lanes that are looked at one by one; with more, all rows are looked at instead.
const LANES: usize = 64;

const MATCHING_LANES: Sql = Sql::both(&["select lane from lanes where tenant = $1 and ($2 = '' or queue = $2)
     and ($3 = '' or kind = $3) and ($4 = '' or affinity = $4) limit 65"]);

/// A bounded walk through one table, newest first.
struct Walk<'a> {
    view: &'static str,
    /// What the walk's index is entered by, beside tenant and id.
    by: String,
    params: Vec<Param<'a>>,
    window: usize,
}

impl Operation for List {
    type Output = JobPage;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<JobPage, StoreError> {
        let (newest, oldest) = self.range();
        let text_end = self.filter.text.as_deref().map(prefix_end);
        let walks = self.walks(tx, text_end.as_deref()).await?;
        let mut found: BTreeMap<JobId, StoredJob> = BTreeMap::new();
        // The newest id at which some walk gave up early: nothing older can be vouched for.
        let mut gave_up_at: Option<Uuid> = None;
        for walk in walks {
            let (jobs, stopped_at) = self.walk(tx, &walk, newest, oldest).await?;
            found.extend(jobs.into_iter().map(|job| (job.id, job)));
            gave_up_at = gave_up_at.max(stopped_at);
        }
        let mut jobs: Vec<StoredJob> = found.into_values().rev().collect();
        if let Some(stop) = gave_up_at {
            jobs.retain(|job| job.id.uuid() >= stop);
        }
        let more = jobs.len() > self.limit;
        jobs.truncate(self.limit);
        let next = if more { jobs.last().map(|job| job.id) } else { gave_up_at.map(JobId::new) };
        Ok(JobPage { next, partial: !more && gave_up_at.is_some(), jobs })
    }
}

impl List {
    /// Ids carry their time: the page lies strictly below the first and at or above the second.
    fn range(&self) -> (Uuid, Uuid) {
        let first_of = |time: Time| uuid::Builder::from_unix_timestamp_millis(time.millis().max(0) as u64, &[0; 10]);
        let until = self.filter.until.map_or(Uuid::max(), |until| first_of(until).into_uuid());
        let before = self.before.map_or(Uuid::max(), JobId::uuid);
        let oldest = self.filter.since.map_or(Uuid::nil(), |since| first_of(since).into_uuid());
        (until.min(before), oldest)
    }

    async fn walks<'a>(&'a self, tx: &mut Tx<'_>, text_end: Option<&'a str>) -> Result<Vec<Walk<'a>>, StoreError> {
        let filter = &self.filter;
        let live = filter.state.is_none_or(|state| !state.is_terminal());
        let ended = filter.state.is_none_or(JobState::is_terminal);
        let mut views = Vec::new();
        if live {
            views.push("live_jobs");
        }
        if ended {
            views.push("ended_jobs");
        }
        let by = |condition: &str, params: Vec<Param<'a>>| -> Vec<Walk<'a>> {
            let walk = |view: &&'static str| Walk {
                view,
                by: condition.to_owned(),
                params: params.clone(),
                window: SCAN_ROWS,
            };
            views.iter().map(walk).collect()
        };
        if let Some(tag) = &filter.tag {
            let condition = "id in (select job from job_tags t where t.tenant = $1 and t.tag = $4)";
            return Ok(by(condition, vec![Param::Text(tag)]));
        }
        if let Some(subject) = &filter.subject {
            return Ok(by("subject = $4", vec![Param::Text(subject)]));
        }
        if let Some(run) = &filter.run {
            return Ok(by("run = $4", vec![Param::Text(run)]));
        }
        let mut walks = Vec::new();
        if live {
            walks.push(Walk { view: "live_jobs", by: String::new(), params: Vec::new(), window: SCAN_ROWS });
        }
        if let (Some(text), Some(end)) = (&filter.text, text_end) {
            // Prefixes have indexes; the window below looks inside payloads.
            let range = vec![Param::Text(text), Param::Text(end)];
            if ended {
                for column in ["unique_key", "error_code"] {
                    let condition = format!(
                        "id in (select id from ended x where x.tenant = $1 and x.{column} >= $4 and x.{column} < $5)"
                    );
                    let params = range.clone();
                    walks.push(Walk { view: "ended_jobs", by: condition, params, window: SCAN_ROWS });
                }
            }
            let tagged = "id in (select job from job_tags t where t.tenant = $1 and t.tag >= $4 and t.tag < $5)";
            walks.extend(by(tagged, range));
        }
        if ended {
            walks.extend(self.ended_walks(tx).await?);
        }
        Ok(walks)
    }

    async fn ended_walks<'a>(&'a self, tx: &mut Tx<'_>) -> Result<Vec<Walk<'a>>, StoreError> {
        let filter = &self.filter;
        let unsuccessful = matches!(filter.state, Some(JobState::Failed | JobState::Canceled));
        if unsuccessful {
            let state = filter.state.map_or("", JobState::as_str);
            let by = "state = $4 and state <> 'succeeded'".to_owned();
            return Ok(vec![Walk { view: "ended_jobs", by, params: vec![Param::Text(state)], window: SCAN_ROWS }]);
        }
        let or_any = |text: &'a Option<String>| Param::Text(text.as_deref().unwrap_or(""));
        let params = [Param::Int(self.tenant.0), or_any(&filter.queue), or_any(&filter.kind), or_any(&filter.affinity)];
        let rows = tx.query(&MATCHING_LANES, &params).await?;
        if rows.len() > LANES {
            return Ok(vec![Walk { view: "ended_jobs", by: String::new(), params: Vec::new(), window: SCAN_ROWS }]);
        }
        let window = (SCAN_ROWS / rows.len().max(1)).max(100);
        let walk =
            |lane: i64| Walk { view: "ended_jobs", by: "lane = $4".into(), params: vec![Param::Int(lane)], window };
        rows.iter().map(|row| row.int(0).map(walk)).collect()
    }

    /// Up to a page and one more of what matches, and where the walk ended if the window was used up before.
    async fn walk(
        &self,
        tx: &mut Tx<'_>,
        walk: &Walk<'_>,
        newest: Uuid,
        oldest: Uuid,
    ) -> Result<(Vec<StoredJob>, Option<Uuid>), StoreError> {
        let mut params = vec![Param::Int(self.tenant.0), Param::Uuid(newest), Param::Uuid(oldest)];
        params.extend(walk.params.iter().copied());
        let and_by = if walk.by.is_empty() { String::new() } else { format!(" and {}", walk.by) };
        let window = format!(
            "select * from {} where tenant = $1 and id < $2 and id >= $3{and_by} order by id desc limit {}",
            walk.view, walk.window
        );
        let conditions = self.conditions(&mut params, tx.is_postgres());
        let page = format!("select * from ({window}) w where {conditions} order by id desc limit {}", self.limit + 1);
        let rows = tx.query_built(&page, &params).await?;
        let jobs = rows.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        if jobs.len() > self.limit || conditions == "1 = 1" {
            return Ok((jobs, None));
        }
        let ids = window.replacen("select *", "select id", 1);
        let last = format!("select (select count(*) from ({ids}) a), (select id from ({ids}) b order by id limit 1)");
        let rows = tx.query_built(&last, &params[..3 + walk.params.len()]).await?;
        let seen = rows.first().map(|row| Ok::<_, StoreError>((row.int(0)?, row.opt_uuid(1)?))).transpose()?;
        Ok((jobs, seen.filter(|(count, _)| *count as usize >= walk.window).and_then(|(_, last)| last)))
    }

    /// Every filter again, as a plain condition on the window's rows.
    fn conditions<'a>(&'a self, params: &mut Vec<Param<'a>>, postgres: bool) -> String {
        let filter = &self.filter;
        let mut conditions = Vec::new();
        let mut equal = |column: &str, value: Option<&'a str>| {
            if let Some(value) = value {
                params.push(Param::Text(value));
                conditions.push(format!("{column} = ${}", params.len()));
            }
        };
        equal("state", filter.state.map(JobState::as_str));
        equal("queue", filter.queue.as_deref());
        equal("kind", filter.kind.as_deref());
        equal("affinity", filter.affinity.as_deref());
        equal("subject", filter.subject.as_deref());
        equal("run", filter.run.as_deref());
        if let Some(text) = filter.text.as_deref() {
            params.push(Param::Text(text));
            let n = params.len();
            let find = if postgres { "strpos" } else { "instr" };
            let at = |column: &str| format!("{find}(coalesce(cast({column} as text), ''), ${n})");
            let any = [
                format!("{} = 1", at("kind")),
                format!("{} = 1", at("unique_key")),
                format!("{} > 0", at("error")),
                format!("{} > 0", at("tags")),
                format!("{} > 0", at("payload")),
            ];
            conditions.push(format!("({})", any.join(" or ")));
        }
        if conditions.is_empty() { "1 = 1".into() } else { conditions.join(" and ") }
    }
}

/// The first text after all that begin with `prefix`.
fn prefix_end(prefix: &str) -> String {
    let mut end: Vec<char> = prefix.chars().collect();
    while let Some(last) = end.pop() {
        if let Some(next) = (last as u32 + 1..=char::MAX as u32).find_map(char::from_u32) {
            end.push(next);
            return end.into_iter().collect();
        }
    }
    char::MAX.to_string()
}
