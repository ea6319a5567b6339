//! Ids on the command line: a complete id, its first or last digits, or `@last`.

use std::fmt;
use std::str::FromStr;

use client::{Client, ClientError, DeadLetterPage, DeliveryFilter, JobFilter};
use domain::IdPart;
use domain::limits::ID_PART_DIGITS;
use uuid::Uuid;
use wire::{JobView, Page};

use super::exit::{NotFound, UsageError};

/// Pages that are read to find an id. A listing of jobs scans up to 5,000 jobs for a page.
const PAGES: usize = 40;
/// Matches that the message about an ambiguous id shows.
const SHOWN: usize = 5;

/// An id as it was typed. The methods find the object among those that the token may see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum IdArgument {
    Complete(Uuid),
    Part { text: String, part: IdPart },
    Last,
}

impl FromStr for IdArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "@last" {
            return Ok(Self::Last);
        }
        if let Ok(id) = text.parse() {
            return Ok(Self::Complete(id));
        }
        let wrong = |_| format!("use an id, its first or last {ID_PART_DIGITS} or more hexadecimal digits, or @last");
        Ok(Self::Part { text: text.to_owned(), part: IdPart::parse(text).map_err(wrong)? })
    }
}

impl fmt::Display for IdArgument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Complete(id) => write!(f, "{id}"),
            Self::Part { text, .. } => f.write_str(text),
            Self::Last => f.write_str("@last"),
        }
    }
}

/// The objects found so far, without duplicates.
type Matches = Vec<(Uuid, String)>;

impl IdArgument {
    /// Finds a job. `@last` is the newest job that the caller has enqueued directly.
    pub(crate) async fn job(&self, client: &Client) -> anyhow::Result<Uuid> {
        match self {
            Self::Complete(id) => Ok(*id),
            Self::Last => {
                let filter = JobFilter { mine: true, limit: Some(1), ..JobFilter::default() };
                let found = jobs(client, filter, 1).await?.into_iter().next();
                let missing = || NotFound("@last: this token has enqueued no job directly".into()).into();
                found.map(|(id, _)| id).ok_or_else(missing)
            }
            Self::Part { text, .. } => {
                let first = JobFilter { id_prefix: Some(text.clone()), ..JobFilter::default() };
                let last = JobFilter { id_suffix: Some(text.clone()), ..JobFilter::default() };
                let mut found = jobs(client, first, SHOWN + 1).await?;
                found.extend(jobs(client, last, SHOWN + 1).await?);
                self.only("job", found)
            }
        }
    }

    pub(crate) async fn worker(&self, client: &Client) -> anyhow::Result<Uuid> {
        let described = |worker: &wire::WorkerView| (worker.id, worker.name.clone());
        self.search("worker", async |cursor| client.workers(cursor).await, described).await
    }

    pub(crate) async fn delivery(&self, client: &Client) -> anyhow::Result<Uuid> {
        let page = async |cursor: Option<&str>| {
            let filter = DeliveryFilter { limit: Some(500), cursor: cursor.map(Into::into), ..Default::default() };
            client.deliveries(&filter).await
        };
        self.search_newest("delivery", page, |delivery| (delivery.id, delivery.state.clone())).await
    }

    pub(crate) async fn dead_letter(&self, client: &Client) -> anyhow::Result<Uuid> {
        let page = async |cursor: Option<&str>| {
            let page = DeadLetterPage { limit: Some(500), cursor: cursor.map(Into::into), ..Default::default() };
            client.dead_letters(&page).await
        };
        self.search_newest("dead letter", page, |letter| (letter.id, letter.source.clone())).await
    }

    pub(crate) async fn failure(&self, client: &Client) -> anyhow::Result<Uuid> {
        let described = |failure: &wire::FailureView| (failure.group_id, failure.error_code.clone());
        self.search_newest("failure group", async |cursor| client.failures(cursor).await, described).await
    }

    pub(crate) async fn signature(&self, client: &Client) -> anyhow::Result<Uuid> {
        let described = |signature: &wire::SignatureView| (signature.id, String::new());
        self.search_newest("signature", async |cursor| client.signatures(cursor).await, described).await
    }

    /// Finds an object in a listing that begins with the newest, which is `@last`.
    pub(crate) async fn search_newest<T>(
        &self,
        noun: &str,
        page: impl AsyncFn(Option<&str>) -> Result<Page<T>, ClientError>,
        described: impl Fn(&T) -> (Uuid, String),
    ) -> anyhow::Result<Uuid> {
        if *self == Self::Last {
            let newest = page(None).await?.items.into_iter().next();
            let missing = || NotFound(format!("@last: there is no {noun}")).into();
            return newest.map(|item| described(&item).0).ok_or_else(missing);
        }
        self.search(noun, page, described).await
    }

    /// Finds an object in a listing of bounded length.
    pub(crate) async fn search<T>(
        &self,
        noun: &str,
        page: impl AsyncFn(Option<&str>) -> Result<Page<T>, ClientError>,
        described: impl Fn(&T) -> (Uuid, String),
    ) -> anyhow::Result<Uuid> {
        let part = match self {
            Self::Complete(id) => return Ok(*id),
            Self::Last => return Err(UsageError(format!("@last is not supported for a {noun}; use its id")).into()),
            Self::Part { part, .. } => part,
        };
        let mut found = Matches::new();
        let mut cursor = None;
        for _ in 0..PAGES {
            let page = page(cursor.as_deref()).await?;
            let matching = page.items.iter().map(&described).filter(|(id, _)| part.begins(*id) || part.ends(*id));
            found.extend(matching);
            cursor = page.next_cursor;
            if cursor.is_none() || found.len() > SHOWN {
                break;
            }
        }
        self.only(noun, found)
    }

    /// Returns the only match. An error names the candidates.
    fn only(&self, noun: &str, mut found: Matches) -> anyhow::Result<Uuid> {
        found.sort();
        found.dedup();
        match found.as_slice() {
            [] => Err(NotFound(format!("no {noun} has an id that begins or ends with `{self}`")).into()),
            [(id, _)] => Ok(*id),
            all => {
                let shown: Vec<String> = all.iter().take(SHOWN).map(|(id, what)| format!("{id} {what}")).collect();
                let more = if all.len() > SHOWN { ", …" } else { "" };
                let shown = shown.join(", ");
                Err(UsageError(format!("`{self}` matches more than one {noun}; add digits: {shown}{more}")).into())
            }
        }
    }
}

/// Reads pages until enough jobs are found, the listing ends, or the limit of pages is reached.
async fn jobs(client: &Client, filter: JobFilter, enough: usize) -> Result<Matches, ClientError> {
    let mut found = Matches::new();
    let mut filter = JobFilter { limit: Some(filter.limit.unwrap_or(SHOWN + 1)), ..filter };
    for _ in 0..PAGES {
        let page = client.jobs(&filter).await?;
        let described = |job: &JobView| (job.id, format!("({} in {}, {})", job.kind, job.queue, job.state));
        found.extend(page.items.iter().map(described));
        filter.cursor = page.next_cursor;
        if filter.cursor.is_none() || found.len() >= enough {
            break;
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(text: &str) -> IdArgument {
        text.parse().unwrap()
    }

    #[test]
    fn an_id_may_be_complete_or_shortened() {
        let id = Uuid::from_u128(0x0193_5a3e_8c11_7c4d_9a01_5b6c_7d8e_9f10);
        assert_eq!(part(&id.to_string()), IdArgument::Complete(id));
        assert_eq!(part("@last"), IdArgument::Last);
        assert!(matches!(part("7d8e9f10"), IdArgument::Part { .. }));
        for wrong in ["", "12345", "last", "0193-5", "xyz123"] {
            let error = wrong.parse::<IdArgument>().unwrap_err();
            assert!(error.contains("6 or more") && error.contains("@last"), "{error}");
        }
    }

    #[test]
    fn an_ambiguous_id_lists_its_candidates() {
        let found = |count: u128| (0..count).map(|id| (Uuid::from_u128(id), "k".to_owned())).collect::<Matches>();
        assert_eq!(part("000000").only("job", [found(1), found(1)].concat()).unwrap(), Uuid::nil());
        let error = part("000000").only("job", found(2)).unwrap_err();
        assert!(error.is::<UsageError>() && error.to_string().contains("0001 k"), "{error}");
        let error = part("000000").only("job", found(9)).unwrap_err();
        assert!(error.to_string().ends_with(", …"), "{error}");
        assert!(part("000000").only("job", found(0)).unwrap_err().is::<NotFound>());
    }
}
