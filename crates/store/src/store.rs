//! The store: opens either database and runs operations on it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use domain::limits::{
    DURATION_STATISTICS_CACHED, DURATION_STATISTICS_TTL_MS, QUEUE_SNAPSHOT_TTL_MS, QUEUE_SNAPSHOTS_CACHED,
    STREAM_FILTERS_CACHED, STREAM_SCAN_TTL_MS,
};
use domain::signals::eta::statistics::Statistics;
use domain::{Name, TenantId};
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

use crate::access::secrets::SecretKeys;
use crate::access::tenants::quota::QuotaUse;
use crate::access::tokens::authenticate::TokenCache;
use crate::cache::stale_while_revalidate::StaleWhileRevalidate;
use crate::db::clock::Clock;
use crate::db::group_commit::GroupCommits;
use crate::db::notifier::Notifier;
use crate::db::tx::{Operation, Pooler, Postgres, Sqlite};
use crate::error::StoreError;
use crate::queue::claim::fast_path::FastPath;
use crate::queue::claim_gate::ClaimGate;
use crate::queue::lanes::LaneCache;
use crate::queue::list::JobFilter;
use crate::queue::prune::PruneCursors;
use crate::queue::workers::serve::TenantRotation;
use crate::signals::duration_statistics::{DurationSampler, StatisticsKey};
use crate::signals::queue_snapshot::QueueSnapshot;
use crate::signals::signatures::index::SignatureIndex;
use crate::signals::versions::JobVersion;
use crate::triggers::cache::TriggerCache;
use crate::triggers::deliveries::adaptive_concurrency::EndpointLimiter;

/// The location of a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DatabaseUrl {
    Sqlite(PathBuf),
    Postgres(String),
}

impl DatabaseUrl {
    /// Parses `sqlite:PATH`, `postgres://…`, `postgresql://…`, or a bare path.
    pub fn parse(text: &str) -> Result<Self, StoreError> {
        if let Some(path) = text.strip_prefix("sqlite:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            if path.is_empty() || path == ":memory:" {
                return Err(StoreError::Unusable("a SQLite database needs a file: sqlite:PATH".into()));
            }
            return Ok(Self::Sqlite(path.into()));
        }
        if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            return Ok(Self::Postgres(text.into()));
        }
        match text.split_once(':') {
            Some((scheme, _)) => Err(StoreError::Unusable(format!(
                "`{scheme}:` is not a database this program knows: use sqlite:PATH or postgres://…"
            ))),
            None if text.is_empty() => Err(StoreError::Unusable("the database URL is empty".into())),
            None => Ok(Self::Sqlite(text.into())),
        }
    }

    /// The folder of files that belong to this database. Default: `windlass-data` beside `windlass.db`.
    pub fn data_dir(&self) -> PathBuf {
        match self {
            Self::Sqlite(path) => {
                let mut name = path.file_stem().unwrap_or_default().to_owned();
                name.push("-data");
                path.with_file_name(name)
            }
            Self::Postgres(_) => PathBuf::from("windlass-data"),
        }
    }
}

/// The name of the folder of artifacts in that folder.
pub const ARTIFACTS: &str = "artifacts";

/// The name of the key file in that folder.
pub const KEY_FILE: &str = "secret.key";

#[derive(Clone, Debug, Default)]
pub struct StoreOptions {
    pub clock: Clock,
    /// Open a database whose settings can lose acknowledged work.
    pub unsafe_durability: bool,
    /// Fail if another server or engine has the same SQLite file open.
    pub exclusive: bool,
    /// The file of the keys that seal secrets. Default: `secret.key` in the database's folder. It is created when the
    /// first secret is sealed.
    pub key_file: Option<PathBuf>,
    /// PostgreSQL only.
    pub pooler: Pooler,
    /// Turns off every accelerator of a claim (`queue::claim::fast_path`). For tests and measurements.
    pub plain_claims: bool,
}

/// A handle on the database; cheap to clone.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    backend: Backend,
    clock: Clock,
    notifier: Notifier,
    claim_gate: ClaimGate,
    lanes: LaneCache,
    fast_path: FastPath,
    group_commits: GroupCommits,
    carried_on: TaskTracker,
    tokens: TokenCache,
    queue_snapshots: StaleWhileRevalidate<(TenantId, Name), QueueSnapshot>,
    signatures: StaleWhileRevalidate<TenantId, SignatureIndex>,
    job_versions: StaleWhileRevalidate<(TenantId, JobFilter), Vec<JobVersion>>,
    ended: DurationSampler,
    duration_statistics: StaleWhileRevalidate<(TenantId, StatisticsKey), Statistics>,
    quota_use: QuotaUse,
    secret_keys: SecretKeys,
    tenant_rotation: TenantRotation,
    endpoint_limiter: EndpointLimiter,
    prune_cursors: PruneCursors,
}

enum Backend {
    Sqlite(Sqlite),
    Postgres(Postgres),
}

impl Store {
    /// Opens the database without touching its schema.
    pub async fn open(url: &DatabaseUrl, options: StoreOptions) -> Result<Self, StoreError> {
        let key_file = options.key_file.clone().unwrap_or_else(|| url.data_dir().join(KEY_FILE));
        let backend = match url {
            DatabaseUrl::Sqlite(path) => Backend::Sqlite(Sqlite::open(path, options.clock.clone(), options.exclusive)?),
            DatabaseUrl::Postgres(url) => {
                let postgres = Postgres::connect(url, options.clock.clone(), options.pooler).await?;
                if !options.unsafe_durability {
                    refuse_less_than_durable(&postgres).await?;
                }
                Backend::Postgres(postgres)
            }
        };
        let is_postgres = matches!(backend, Backend::Postgres(_));
        Ok(Self {
            inner: Arc::new(Inner {
                backend,
                clock: options.clock,
                notifier: Notifier::default(),
                claim_gate: ClaimGate::default(),
                lanes: LaneCache::default(),
                fast_path: FastPath::new(!options.plain_claims),
                group_commits: if is_postgres { GroupCommits::on_postgres() } else { GroupCommits::on_sqlite() },
                carried_on: TaskTracker::new(),
                tokens: TokenCache::default(),
                queue_snapshots: StaleWhileRevalidate::new(
                    Duration::from_millis(QUEUE_SNAPSHOT_TTL_MS),
                    QUEUE_SNAPSHOTS_CACHED,
                ),
                signatures: StaleWhileRevalidate::new(
                    Duration::from_millis(QUEUE_SNAPSHOT_TTL_MS),
                    QUEUE_SNAPSHOTS_CACHED,
                ),
                job_versions: StaleWhileRevalidate::new(
                    Duration::from_millis(STREAM_SCAN_TTL_MS),
                    STREAM_FILTERS_CACHED,
                ),
                ended: DurationSampler::default(),
                duration_statistics: StaleWhileRevalidate::new(
                    Duration::from_millis(DURATION_STATISTICS_TTL_MS),
                    DURATION_STATISTICS_CACHED,
                ),
                quota_use: QuotaUse::default(),
                secret_keys: SecretKeys::in_file(key_file),
                tenant_rotation: TenantRotation::default(),
                endpoint_limiter: EndpointLimiter::default(),
                prune_cursors: PruneCursors::default(),
            }),
        })
    }

    /// Runs an operation in its own transaction. On SQLite the commit is shared.
    pub async fn write<O: Operation>(&self, operation: O) -> Result<O::Output, StoreError> {
        self.write_late(|| operation).await
    }

    /// Runs an operation that is built when a transaction is available.
    pub(crate) async fn write_late<O: Operation>(
        &self,
        make: impl FnOnce() -> O + Send + 'static,
    ) -> Result<O::Output, StoreError> {
        match &self.inner.backend {
            Backend::Sqlite(sqlite) => sqlite.write(make).await,
            Backend::Postgres(postgres) => postgres.write(make).await,
        }
    }

    /// Runs an operation that only reads.
    pub async fn read<O: Operation>(&self, operation: O) -> Result<O::Output, StoreError> {
        match &self.inner.backend {
            Backend::Sqlite(sqlite) => sqlite.read(operation).await,
            Backend::Postgres(postgres) => postgres.read(operation).await,
        }
    }

    pub fn is_postgres(&self) -> bool {
        matches!(self.inner.backend, Backend::Postgres(_))
    }

    /// Vacuums and analyzes PostgreSQL. Measurements start with it.
    pub async fn vacuum(&self) -> Result<(), StoreError> {
        match &self.inner.backend {
            Backend::Sqlite(_) => Ok(()),
            Backend::Postgres(postgres) => postgres.vacuum().await,
        }
    }

    /// Returns true if a pooler is between this node and PostgreSQL, so that sessions hold no state.
    pub fn is_behind_a_pooler(&self) -> bool {
        match &self.inner.backend {
            Backend::Sqlite(_) => false,
            Backend::Postgres(postgres) => postgres.is_behind_a_pooler(),
        }
    }

    /// The database file, on SQLite.
    pub fn sqlite_path(&self) -> Option<&std::path::Path> {
        match &self.inner.backend {
            Backend::Sqlite(sqlite) => Some(sqlite.path()),
            Backend::Postgres(_) => None,
        }
    }

    pub fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    pub fn notifier(&self) -> &Notifier {
        &self.inner.notifier
    }

    /// Limits concurrent claims of workers that wait for the same jobs.
    pub fn claim_gate(&self) -> &ClaimGate {
        &self.inner.claim_gate
    }

    pub(crate) fn lanes(&self) -> &LaneCache {
        &self.inner.lanes
    }

    pub(crate) fn fast_path(&self) -> &FastPath {
        &self.inner.fast_path
    }

    pub(crate) fn triggers_cache(&self) -> &TriggerCache {
        &self.inner.lanes.triggers
    }

    pub(crate) fn group_commits(&self) -> &GroupCommits {
        &self.inner.group_commits
    }

    /// Runs a task to its end even if its caller is dropped.
    pub fn carry_on<F>(&self, work: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        self.inner.carried_on.spawn(work)
    }

    pub(crate) fn tokens(&self) -> &TokenCache {
        &self.inner.tokens
    }

    pub(crate) fn queue_snapshot_cache(&self) -> &StaleWhileRevalidate<(TenantId, Name), QueueSnapshot> {
        &self.inner.queue_snapshots
    }

    pub(crate) fn job_version_cache(&self) -> &StaleWhileRevalidate<(TenantId, JobFilter), Vec<JobVersion>> {
        &self.inner.job_versions
    }

    pub(crate) fn signature_cache(&self) -> &StaleWhileRevalidate<TenantId, SignatureIndex> {
        &self.inner.signatures
    }

    pub(crate) fn duration_sampler(&self) -> &DurationSampler {
        &self.inner.ended
    }

    pub(crate) fn duration_statistics_cache(&self) -> &StaleWhileRevalidate<(TenantId, StatisticsKey), Statistics> {
        &self.inner.duration_statistics
    }

    pub(crate) fn secret_keys(&self) -> &SecretKeys {
        &self.inner.secret_keys
    }

    pub(crate) fn tenant_rotation(&self) -> &TenantRotation {
        &self.inner.tenant_rotation
    }

    pub(crate) fn endpoint_limiter(&self) -> &EndpointLimiter {
        &self.inner.endpoint_limiter
    }

    pub(crate) fn prune_cursors(&self) -> &PruneCursors {
        &self.inner.prune_cursors
    }

    pub(crate) fn quota_use(&self) -> &QuotaUse {
        &self.inner.quota_use
    }

    /// The value of a PostgreSQL setting.
    pub async fn postgres_setting(&self, name: &str) -> Result<Option<String>, StoreError> {
        match &self.inner.backend {
            Backend::Sqlite(_) => Ok(None),
            Backend::Postgres(postgres) => postgres.show(name).await.map(Some),
        }
    }
}

/// Refuses to serve if a power failure could lose acknowledged writes.
async fn refuse_less_than_durable(postgres: &Postgres) -> Result<(), StoreError> {
    for (setting, bad) in [("fsync", &["off"][..]), ("synchronous_commit", &["off"]), ("full_page_writes", &["off"])] {
        let value = postgres.show(setting).await?;
        if bad.contains(&value.as_str()) {
            return Err(StoreError::Unusable(format!(
                "PostgreSQL runs with {setting}={value}, which can lose acknowledged work; set it to on, \
                 or accept the loss with --unsafe"
            )));
        }
    }
    Ok(())
}
