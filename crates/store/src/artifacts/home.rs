//! The one folder or bucket in which the blobs of a database are, told apart from others by a mark: a blob of nothing whose name
//! the database knows. A node with another reads none of the others' blobs, and would take their garbage for deleted.

use std::fmt::Write;
use std::path::Path;

use super::Blobs;
use crate::clock::fill_random;
use crate::error::StoreError;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

impl Store {
    /// Refuses a place that is not the one in which this database's blobs are, with what to do. The first that is asked about
    /// becomes the one. On SQLite there is no other node.
    pub async fn check_home(&self, blobs: &Blobs) -> Result<(), StoreError> {
        if !self.is_postgres() {
            return Ok(());
        }
        let mark = match self.read(Find).await? {
            Some(mark) => mark,
            None => self.move_in(blobs).await?,
        };
        check(blobs, &mark).await
    }

    /// What is wrong with a folder, without touching anything; nothing while the database knows of none.
    pub async fn look_at_home(&self, folder: &Path) -> Result<Option<String>, StoreError> {
        let Some(mark) = self.read(Find).await? else { return Ok(None) };
        let checked = async { check(&Blobs::existing(folder)?, &mark).await }.await;
        match checked {
            Err(StoreError::Unusable(why)) => Ok(Some(why)),
            checked => checked.map(|()| None),
        }
    }

    /// Another node may be first; then its mark counts.
    async fn move_in(&self, blobs: &Blobs) -> Result<String, StoreError> {
        let mut random = [0u8; 8];
        fill_random(&mut random);
        let mut mark = String::new();
        random.iter().for_each(|byte| write!(mark, "{byte:02x}").expect("a string takes everything"));
        blobs.mark(&location(&mark)).await?;
        let known = self.write(MoveIn { mark: mark.clone() }).await?;
        if known != mark {
            // At worst it is one blob too many.
            let _ = blobs.delete(&location(&mark)).await;
        }
        Ok(known)
    }
}

fn location(mark: &str) -> String {
    format!("windlass-artifacts-{mark}")
}

async fn check(blobs: &Blobs, mark: &str) -> Result<(), StoreError> {
    let location = location(mark);
    if blobs.has(&location).await? {
        return Ok(());
    }
    let (place, kind) = (blobs.place(), blobs.kind());
    Err(StoreError::Unusable(format!(
        "{place} is not the {kind} in which the other nodes keep large artifacts: what is stored here is not found by them, \
         nor theirs by this node, and nothing is deleted here; give all nodes one shared folder or one bucket \
         (--artifacts PATH or s3://BUCKET/PREFIX). If it is the one, make the empty file {place}/{location}"
    )))
}

struct Find;

const FIND: Sql = Sql::both(&["select artifacts from installation where id = 1"]);

impl Operation for Find {
    type Output = Option<String>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<String>, StoreError> {
        let row = tx.query_opt(&FIND, &[]).await?;
        row.ok_or_else(|| StoreError::unexpected("the installation has no row"))?.opt_text(0)
    }
}

struct MoveIn {
    mark: String,
}

const MOVE_IN: Sql =
    Sql::both(&["update installation set artifacts = coalesce(artifacts, $1) where id = 1 returning artifacts"]);

impl Operation for MoveIn {
    /// The mark that counts.
    type Output = String;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<String, StoreError> {
        let row = tx.query_opt(&MOVE_IN, &[Param::Text(&self.mark)]).await?;
        row.ok_or_else(|| StoreError::unexpected("the installation has no row"))?.text(0)
    }
}
