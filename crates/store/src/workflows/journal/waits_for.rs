//! What a suspended job waits for, for `why`.

use domain::{JobId, JournalOp, Time};

use super::{AskedApproval, AwaitedEvent};
use crate::db::codec::from_json;
use crate::db::tx::{Param, Sql, Tx};
use crate::error::StoreError;

/// The first open entry that a suspended job waits for.
pub(crate) struct OpenWait {
    /// What it is, after "waits for".
    pub(crate) what: String,
    /// When it resolves by itself.
    pub(crate) until: Option<Time>,
    /// The first child of the entry that has not ended.
    pub(crate) child: Option<JobId>,
}

// A job that waits for one of several entries is explained by the one that resolves by itself first.
const OPEN_WAIT: Sql = Sql::new(
    &["select e.key, e.op, e.position, e.input, e.due_at, h.wake_count, count(*) over () as open,
           json_array_length(h.wake_keys) as keys
       from journals h, json_each(h.wake_keys) k join journal_entries e on e.job = h.job and e.key = k.value
       where h.job = $1 and e.seq is null
       order by case when e.due_at is null then 1 else 0 end, e.due_at, e.position limit 1"],
    "select e.key, e.op, e.position, e.input, e.due_at, h.wake_count, count(*) over () as open,
         json_array_length(h.wake_keys) as keys
     from journals h cross join json_array_elements_text(h.wake_keys) k
     join journal_entries e on e.job = h.job and e.key = k
     where h.job = $1 and e.seq is null
     order by case when e.due_at is null then 1 else 0 end, e.due_at, e.position limit 1",
);
// A child that does not wait itself explains more than one that does.
const OPEN_CHILD: Sql = Sql::both(&["select c.child, c.number,
         (select count(*) from journal_children a where a.job = $1 and a.position = $2) as children
     from journal_children c left join jobs j on j.id = c.child
     where c.job = $1 and c.position = $2 and c.state is null
     order by case when j.state = 'waiting' then 1 else 0 end, c.number limit 1"]);

pub(crate) async fn open_wait(tx: &mut Tx<'_>, job: JobId) -> Result<Option<OpenWait>, StoreError> {
    let Some(row) = tx.query_opt(&OPEN_WAIT, &[Param::from(job)]).await? else { return Ok(None) };
    let (key, op) = (row.text("key")?, row.text("op")?);
    let input = row.opt_text("input")?;
    let until = row.opt_time("due_at")?;
    let mut child = None;
    let mut what = match JournalOp::parse(&op) {
        Some(JournalOp::Sleep) => format!("the end of the sleep {key}"),
        Some(JournalOp::Event) => {
            let awaited: Option<AwaitedEvent> = input.as_deref().map(from_json).transpose()?;
            format!("the event {}", awaited.map_or(key, |awaited| awaited.name))
        }
        Some(JournalOp::Approval) => {
            let asked: Option<AskedApproval> = input.as_deref().map(from_json).transpose()?;
            let title = asked.map_or(String::new(), |asked| format!(": {}", asked.title));
            format!("the approval {key}{title}")
        }
        Some(JournalOp::Child) => {
            let params = [Param::from(job), Param::Int(row.int("position")?)];
            match tx.query_opt(&OPEN_CHILD, &params).await? {
                Some(row) => {
                    child = Some(row.job("child")?);
                    format!("child {} of {}", row.int("number")?, row.int("children")?)
                }
                None => format!("the children of {key}"),
            }
        }
        _ => format!("the step {key}"),
    };
    let (count, open, keys) = (row.int("wake_count")?, row.int("open")?, row.int("keys")?);
    let left = (count - (keys - open)).max(1);
    if open > 1 {
        what.push_str(&format!(" ({left} of {open} open steps must resolve)"));
    }
    if let Some(until) = until {
        what.push_str(&format!(" until {}", to_the_second(until)));
    }
    Ok(Some(OpenWait { what, until, child }))
}

/// RFC 3339 without fractions of a second.
pub(crate) fn to_the_second(time: Time) -> String {
    jiff::Timestamp::from_second(time.micros().div_euclid(1_000_000)).unwrap_or(jiff::Timestamp::MAX).to_string()
}
