//! Collects ids of jobs that may belong on a page through indexes. The number of scanned rows has a bound that does
//! not depend on the size of the tables.

use std::collections::{BTreeMap, BTreeSet};

use domain::JobState;
use domain::limits::{LISTED_LANES, LISTED_PREFIXES, SCAN_ROWS};
use uuid::Uuid;

use super::{JobFilter, ListJobs};
use crate::db::codec::from_json;
use crate::db::tx::{Column, Param, Row, Sql, Tx};
use crate::error::StoreError;

pub(super) struct Candidates {
    /// Newest first.
    pub(super) ids: Vec<Uuid>,
    /// Ids below this one were not scanned; more of them may match. `None` if the scan was complete.
    pub(super) scanned_to: Option<Uuid>,
    /// Matches may be missing anywhere, not only below `scanned_to`.
    pub(super) incomplete: bool,
}

/// State of one candidate search.
struct Search<'a> {
    query: &'a ListJobs,
    newest: Uuid,
    oldest: Uuid,
    /// Maximum ids to read from one index.
    window: usize,
    ids: BTreeSet<Uuid>,
    /// Matches that are returned although newer ones may be missing: prefix matches and the heads of long lanes.
    scattered: BTreeSet<Uuid>,
    scanned_to: Option<Uuid>,
    incomplete: bool,
}

impl Candidates {
    pub(super) async fn find(tx: &mut Tx<'_>, query: &ListJobs) -> Result<Self, StoreError> {
        let (newest, oldest) = query.range();
        let window = SCAN_ROWS;
        let (ids, scattered) = Default::default();
        let mut search = Search { query, newest, oldest, window, ids, scattered, scanned_to: None, incomplete: false };
        search.collect(tx).await?;
        let Search { mut ids, mut scattered, scanned_to, incomplete, .. } = search;
        // A later page scans the older ids again, together with all ids between them.
        if let Some(end) = scanned_to {
            ids = ids.split_off(&end);
        }
        ids.append(&mut scattered);
        Ok(Self { ids: ids.into_iter().rev().collect(), scanned_to, incomplete })
    }
}

impl Search<'_> {
    async fn collect(&mut self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let filter = &self.query.filter;
        let live = filter.state.is_none_or(|state| !state.is_terminal());
        let ended = filter.state.is_none_or(JobState::is_terminal);
        if let Some(tag) = &filter.tag {
            self.window = self.window_for(JobFilter { tag: None, ..filter.clone() });
            return self.newest_of(tx, &BY_TAG, &[Param::Text(tag)]).await;
        }
        if let Some(subject) = &filter.subject {
            self.window = self.window_for(JobFilter { subject: None, ..filter.clone() });
            self.newest_of(tx, &LIVE_BY_SUBJECT, &[Param::Text(subject)]).await?;
            return self.newest_of(tx, &ENDED_BY_SUBJECT, &[Param::Text(subject)]).await;
        }
        if let Some(run) = &filter.run {
            self.window = self.window_for(JobFilter { run: None, ..filter.clone() });
            self.newest_of(tx, &LIVE_BY_RUN, &[Param::Text(run)]).await?;
            return self.newest_of(tx, &ENDED_BY_RUN, &[Param::Text(run)]).await;
        }
        if live {
            self.window = SCAN_ROWS;
            self.live(tx).await?;
        }
        if let Some(text) = &filter.text {
            self.window = self.window_for(JobFilter { text: None, ..filter.clone() });
            self.prefixes(tx, text).await?;
        }
        if ended {
            self.ended(tx).await?;
        }
        Ok(())
    }

    /// Number of ids to read from an index that already applies the filter except for `rest`: one page if `rest` is
    /// empty, otherwise the whole scan limit.
    fn window_for(&self, rest: JobFilter) -> usize {
        let JobFilter { state, queue, kind, affinity, subject, run, tag, text, principal, queues, id_suffix, .. } =
            rest;
        let others = [queue, kind, affinity, subject, run, tag, text, principal];
        let is_empty = state.is_none() && queues.is_none() && id_suffix.is_none() && others.iter().all(Option::is_none);
        if is_empty { self.query.limit + 1 } else { SCAN_ROWS }
    }

    /// Adds the newest ids of one index.
    async fn newest_of(&mut self, tx: &mut Tx<'_>, sql: &Sql, by: &[Param<'_>]) -> Result<(), StoreError> {
        let mut params = vec![Param::Int(self.query.tenant.0), Param::Uuid(self.newest), Param::Uuid(self.oldest)];
        params.push(Param::Int(self.window as i64));
        params.extend_from_slice(by);
        let ids = uuids(&tx.query(sql, &params).await?)?;
        self.add(ids, self.window);
        Ok(())
    }

    /// Adds ids of one index. A full window means that the index may hold more.
    fn add(&mut self, ids: Vec<Uuid>, window: usize) {
        if ids.len() >= window {
            self.scanned_to = self.scanned_to.max(ids.last().copied());
        }
        self.ids.extend(ids);
    }

    async fn ended(&mut self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let filter = &self.query.filter;
        let unsuccessful = matches!(filter.state, Some(JobState::Failed | JobState::Canceled));
        let state = if unsuccessful { None } else { filter.state };
        self.window = self.window_for(JobFilter { state, queue: None, kind: None, affinity: None, ..filter.clone() });
        let lanes = self.lanes(tx).await?;
        if lanes.len() > LISTED_LANES {
            let (ids, end) = self.newest(tx, &NEWEST_ENDED).await?;
            self.ids.extend(self.owned_ids(&ids)?);
            self.scanned_to = self.scanned_to.max(end);
            return Ok(());
        }
        let sql = match filter.state {
            Some(JobState::Failed) => &FAILED_BY_LANE,
            Some(JobState::Canceled) => &CANCELED_BY_LANE,
            _ => &ENDED_BY_LANE,
        };
        self.newest_of_lanes(tx, sql, &lanes).await
    }

    async fn newest_of_lanes(&mut self, tx: &mut Tx<'_>, sql: &Sql, lanes: &[i64]) -> Result<(), StoreError> {
        // Without further filters one page per lane is enough; otherwise the lanes share the window.
        let each = self.window.min(SCAN_ROWS / lanes.len().max(1)).max(self.query.limit + 1);
        let params = [Param::Uuid(self.newest), Param::Uuid(self.oldest), Param::Int(each as i64)];
        let rows = tx.query_each(sql, &[Column::ints(lanes.iter().copied())], &params).await?;
        for lane in by_lane(&rows)? {
            self.add(lane, each);
        }
        Ok(())
    }

    async fn lanes(&self, tx: &mut Tx<'_>) -> Result<Vec<i64>, StoreError> {
        let filter = &self.query.filter;
        let or_empty = |text: Option<&str>| text.unwrap_or("").to_owned();
        let texts =
            [or_empty(filter.queue.as_deref()), or_empty(filter.kind.as_deref()), or_empty(filter.affinity.as_deref())];
        let mut params = vec![Param::Int(self.query.tenant.0), Param::Int(LISTED_LANES as i64 + 1)];
        params.extend(texts.iter().map(|text| Param::Text(text)));
        tx.query(&LANES, &params).await?.iter().map(|row| row.int("lane")).collect()
    }

    /// Adds live jobs. Running jobs are found through their claims, scheduled and waiting jobs through their lanes. Other states
    /// scan the newest rows; if these are not enough, the search goes lane by lane.
    async fn live(&mut self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let state = self.query.filter.state;
        match state {
            Some(JobState::Working | JobState::Loading) => {
                if let Some(ids) = self.claimed(tx).await? {
                    self.ids.extend(ids);
                    return Ok(());
                }
            }
            Some(JobState::Scheduled | JobState::Waiting) => {
                let lanes = self.lanes(tx).await?;
                if lanes.len() <= LISTED_LANES {
                    return self.newest_of_lanes(tx, &HELD_BACK_BY_LANE, &lanes).await;
                }
            }
            _ => {}
        }
        let (rows, end) = self.newest(tx, &NEWEST_LIVE).await?;
        let owned = self.owned_ids(&rows)?;
        let sparse = owned.len() < rows.len() || self.window_for(self.query.filter.clone()) == SCAN_ROWS;
        if end.is_some() && sparse && self.live_of_lanes(tx).await? {
            return Ok(());
        }
        self.ids.extend(owned);
        self.scanned_to = self.scanned_to.max(end);
        Ok(())
    }

    /// Returns the newest rows of a table, of all tenants, and the id where the scan stopped if there are more.
    async fn newest(&self, tx: &mut Tx<'_>, sql: &Sql) -> Result<(Vec<Row>, Option<Uuid>), StoreError> {
        let params = [Param::Uuid(self.newest), Param::Uuid(self.oldest), Param::Int(SCAN_ROWS as i64)];
        let rows = tx.query(sql, &params).await?;
        let end = if rows.len() < SCAN_ROWS { None } else { rows.last().map(|row| row.uuid("id")).transpose()? };
        Ok((rows, end))
    }

    fn owned_ids(&self, rows: &[Row]) -> Result<Vec<Uuid>, StoreError> {
        let owned = |row: &&Row| row.int("tenant").is_ok_and(|tenant| tenant == self.query.tenant.0);
        let ids: Vec<Uuid> = rows.iter().filter(owned).map(|row| row.uuid("id")).collect::<Result<_, _>>()?;
        Ok(self.in_range(ids))
    }

    fn in_range(&self, mut ids: Vec<Uuid>) -> Vec<Uuid> {
        ids.retain(|id| *id < self.newest && *id >= self.oldest);
        ids
    }

    /// Adds the live jobs of the matching lanes. Returns whether these are all of them.
    async fn live_of_lanes(&mut self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        let lanes = self.lanes(tx).await?;
        if lanes.len() > LISTED_LANES {
            return Ok(false);
        }
        let each = SCAN_ROWS / lanes.len().max(1) + 1;
        let columns = [Column::ints(lanes.iter().copied())];
        let ready = tx.query_each(&READY_BY_LANE, &columns, &[Param::Int(each as i64)]).await?;
        let ready = by_lane(&ready)?;
        // `READY_BY_LANE` holds no running jobs; they are found through their claims.
        let claimed = match self.query.filter.state {
            Some(JobState::Queued) => Some(Vec::new()),
            _ => self.claimed(tx).await?,
        };
        let all = claimed.is_some() && ready.iter().all(|lane| lane.len() < each);
        let mut found = self.in_range(ready.into_iter().flatten().collect());
        found.extend(claimed.into_iter().flatten());
        if all {
            self.ids.extend(found);
            self.newest_of_lanes(tx, &HELD_BACK_BY_LANE, &lanes).await?;
        } else {
            self.scattered.extend(found);
        }
        Ok(all)
    }

    async fn claimed(&self, tx: &mut Tx<'_>) -> Result<Option<Vec<Uuid>>, StoreError> {
        let rows = tx.query(&CLAIMED, &[Param::Int(self.query.tenant.0), Param::Int(SCAN_ROWS as i64)]).await?;
        if rows.len() >= SCAN_ROWS {
            return Ok(None);
        }
        let lists = rows.iter().map(|row| from_json::<Vec<Uuid>>(&row.text("jobs")?)).collect::<Result<Vec<_>, _>>()?;
        Ok(Some(self.in_range(lists.into_iter().flatten().collect())))
    }

    /// Adds jobs by prefix. Distinct tags, error codes and kinds are few, and each has an index ordered by job id.
    /// Unique keys are many and are scanned as a range.
    async fn prefixes(&mut self, tx: &mut Tx<'_>, text: &str) -> Result<(), StoreError> {
        let end = prefix_end(text);
        let range = [Param::Int(self.query.tenant.0), Param::Text(text), Param::Text(&end)];
        for (values, column, ids) in [(&TAGS, "tag", &BY_TAGS), (&CODES, "code", &ENDED_BY_CODES)] {
            let mut params = range.to_vec();
            params.push(Param::Int(LISTED_PREFIXES as i64 + 1));
            let rows = tx.query(values, &params).await?;
            self.incomplete |= rows.len() > LISTED_PREFIXES;
            let found = rows.iter().map(|row| row.text(column)).collect::<Result<Vec<_>, _>>()?;
            let each = self.window.min(SCAN_ROWS / found.len().max(1)).max(self.query.limit + 1);
            let columns = [Column::texts(found.iter().map(String::as_str))];
            let tenant = Param::Int(self.query.tenant.0);
            let params = [tenant, Param::Uuid(self.newest), Param::Uuid(self.oldest), Param::Int(each as i64)];
            self.add_prefixed(uuids(&tx.query_each(ids, &columns, &params).await?)?, SCAN_ROWS);
        }
        let mut params = range.to_vec();
        params.extend([Param::Uuid(self.newest), Param::Uuid(self.oldest), Param::Int(SCAN_ROWS as i64)]);
        for sql in [&LIVE_BY_KEY, &ENDED_BY_KEY] {
            self.add_prefixed(uuids(&tx.query(sql, &params).await?)?, SCAN_ROWS);
        }
        let mut params = range.to_vec();
        params.push(Param::Int(LISTED_PREFIXES as i64 + 1));
        let rows = tx.query(&LANES_BY_KIND, &params).await?;
        self.incomplete |= rows.len() > LISTED_PREFIXES;
        let lanes = rows.iter().map(|row| row.int("lane")).collect::<Result<Vec<_>, _>>()?;
        self.newest_of_lanes(tx, &ENDED_BY_LANE, &lanes).await
    }

    fn add_prefixed(&mut self, ids: Vec<Uuid>, window: usize) {
        self.incomplete |= ids.len() >= window;
        self.scattered.extend(ids);
    }
}

fn uuids(rows: &[Row]) -> Result<Vec<Uuid>, StoreError> {
    rows.iter().map(|row| row.uuid("id")).collect()
}

/// Groups rows of (lane, id) by lane.
fn by_lane(rows: &[Row]) -> Result<Vec<Vec<Uuid>>, StoreError> {
    let mut lanes: BTreeMap<i64, Vec<Uuid>> = BTreeMap::new();
    for row in rows {
        lanes.entry(row.int("lane")?).or_default().push(row.uuid("id")?);
    }
    // The database returns rows of several lanes in any order. Callers need each lane newest first.
    lanes.values_mut().for_each(|ids| ids.sort_unstable_by(|a, b| b.cmp(a)));
    Ok(lanes.into_values().collect())
}

/// Returns the smallest string greater than all strings that begin with `prefix`.
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

const LANES: Sql = Sql::both(&["select lane from lanes where tenant = $1 and ($3 = '' or queue = $3)
     and ($4 = '' or kind = $4) and ($5 = '' or affinity = $5) limit $2"]);

const LANES_BY_KIND: Sql =
    Sql::both(&["select lane from lanes where tenant = $1 and kind >= $2 and kind < $3 limit $4"]);

const BY_TAG: Sql = Sql::both(&["select job as id from job_tags
     where tenant = $1 and job < $2 and job >= $3 and tag = $5 order by job desc limit $4"]);

const LIVE_BY_SUBJECT: Sql = Sql::both(&["select id from jobs
     where tenant = $1 and id < $2 and id >= $3 and subject = $5 order by id desc limit $4"]);

const ENDED_BY_SUBJECT: Sql = Sql::both(&["select id from ended
     where tenant = $1 and id < $2 and id >= $3 and subject = $5 order by id desc limit $4"]);

const LIVE_BY_RUN: Sql = Sql::both(&["select id from jobs
     where tenant = $1 and id < $2 and id >= $3 and run = $5 order by id desc limit $4"]);

const ENDED_BY_RUN: Sql = Sql::both(&["select id from ended
     where tenant = $1 and id < $2 and id >= $3 and run = $5 order by id desc limit $4"]);

const NEWEST_ENDED: Sql = Sql::both(&["select id, tenant from ended
     where id < $1 and id >= $2 order by id desc limit $3"]);

const NEWEST_LIVE: Sql = Sql::both(&["select id, tenant from jobs
     where id < $1 and id >= $2 order by id desc limit $3"]);

const ENDED_BY_LANE: Sql = Sql::new(
    &["select lane, id from ended where lane = $1 and id < $2 and id >= $3 order by id desc limit $4"],
    "select l.lane, e.id from unnest($1::bigint[]) as l (lane) cross join lateral
     (select id from ended where lane = l.lane and id < $2 and id >= $3 order by id desc limit $4) as e",
);

const FAILED_BY_LANE: Sql = Sql::new(
    &["select lane, id from ended where lane = $1 and state = 'failed' and state <> 'succeeded'
       and id < $2 and id >= $3 order by id desc limit $4"],
    "select l.lane, e.id from unnest($1::bigint[]) as l (lane) cross join lateral
     (select id from ended where lane = l.lane and state = 'failed' and id < $2 and id >= $3
      order by id desc limit $4) as e",
);

const CANCELED_BY_LANE: Sql = Sql::new(
    &["select lane, id from ended where lane = $1 and state = 'canceled' and state <> 'succeeded'
       and id < $2 and id >= $3 order by id desc limit $4"],
    "select l.lane, e.id from unnest($1::bigint[]) as l (lane) cross join lateral
     (select id from ended where lane = l.lane and state = 'canceled' and id < $2 and id >= $3
      order by id desc limit $4) as e",
);

const HELD_BACK_BY_LANE: Sql = Sql::new(
    &["select lane, id from jobs where lane = $1 and (due_at is not null or parked is not null)
       and id < $2 and id >= $3 order by id desc limit $4"],
    "select l.lane, j.id from unnest($1::bigint[]) as l (lane) cross join lateral
     (select id from jobs where lane = l.lane and (due_at is not null or parked is not null)
      and id < $2 and id >= $3 order by id desc limit $4) as j",
);

// The index of a lane is ordered by `run_at`. The id range is applied afterwards, so that the scan stays bounded.
const READY_BY_LANE: Sql = Sql::new(
    &["select lane, id from jobs where lane = $1 and due_at is null and parked is null and worker is null
       order by run_at desc, id desc limit $2"],
    "select l.lane, j.id from unnest($1::bigint[]) as l (lane) cross join lateral
     (select id from jobs where lane = l.lane and due_at is null and parked is null
      order by run_at desc, id desc limit $2) as j",
);

const CLAIMED: Sql = Sql::both(&["select jobs from claims where tenant = $1 limit $2"]);

const TAGS: Sql = Sql::both(&["with recursive found (tag) as (
        select min(tag) from job_tags where tenant = $1 and tag >= $2 and tag < $3
        union all
        select (select min(t.tag) from job_tags t where t.tenant = $1 and t.tag > found.tag and t.tag < $3)
        from found where found.tag is not null)
     select tag from found where tag is not null limit $4"]);

const BY_TAGS: Sql = Sql::new(
    &["select job as id from job_tags
       where tag = $1 and tenant = $2 and job < $3 and job >= $4 order by job desc limit $5"],
    "select t.job as id from unnest($1::text[]) as wanted (tag) cross join lateral (select job from job_tags
     where tenant = $2 and tag = wanted.tag and job < $3 and job >= $4 order by job desc limit $5) as t",
);

const CODES: Sql = Sql::both(&["with recursive found (code) as (
        select min(error_code) from ended where tenant = $1 and error_code >= $2 and error_code < $3
        union all
        select (select min(e.error_code) from ended e
            where e.tenant = $1 and e.error_code > found.code and e.error_code < $3)
        from found where found.code is not null)
     select code from found where code is not null limit $4"]);

const ENDED_BY_CODES: Sql = Sql::new(
    &["select id from ended where error_code = $1 and tenant = $2 and id < $3 and id >= $4 order by id desc limit $5"],
    "select e.id from unnest($1::text[]) as wanted (code) cross join lateral (select id from ended
     where tenant = $2 and error_code = wanted.code and id < $3 and id >= $4 order by id desc limit $5) as e",
);

const LIVE_BY_KEY: Sql =
    Sql::both(&["select k.job as id from (select distinct queue from lanes where tenant = $1) as q
     join unique_keys k on k.tenant = $1 and k.queue = q.queue and k.key >= $2 and k.key < $3
     where k.job < $4 and k.job >= $5 limit $6"]);

const ENDED_BY_KEY: Sql = Sql::both(&["select id from ended
     where tenant = $1 and unique_key >= $2 and unique_key < $3 and id < $4 and id >= $5 limit $6"]);
