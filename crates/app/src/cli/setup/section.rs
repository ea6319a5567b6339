//! The sections of a setup file, and how each reads, writes and removes its objects.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::ValueEnum;
use client::{Client, ClientError, RuntimeOperation};
use domain::{Right, Role};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use uuid::Uuid;
use wire::{Page, PoolRequest, ProcessRequest, QueueSettings, RuntimeRequest, TokenRequest, TokenView, TriggerRequest};

use super::compare::is_empty;
use crate::cli::fleet::process;
use crate::cli::list;
use crate::cli::runtimes::{pool, runtime};
use crate::cli::triggers::trigger;

/// In the order of changes: pools name runtimes, jobs need queues, and triggers start jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum Section {
    Runtimes,
    Pools,
    Queues,
    Processes,
    Triggers,
    Tokens,
}

/// An object of the server.
pub(super) struct Declared {
    pub(super) id: Option<Uuid>,
    /// The request that would declare the object as it is.
    pub(super) settings: Value,
    /// Never removed by `--prune`.
    pub(super) is_protected: bool,
}

impl Declared {
    fn of(id: Option<Uuid>, request: &impl Serialize) -> anyhow::Result<Self> {
        Ok(Self { id, settings: serde_json::to_value(request)?, is_protected: false })
    }

    /// The settings as `export` writes them: without members that have no value.
    pub(super) fn exported(self, section: Section) -> Value {
        let mut settings = self.settings.as_object().cloned().unwrap_or_default();
        settings.retain(|_, value| !is_empty(value));
        if section == Section::Queues
            && let Some(webhook) = settings.get_mut("webhook").and_then(Value::as_object_mut)
        {
            webhook.retain(|_, value| !is_empty(value));
        }
        Value::Object(settings)
    }
}

impl Section {
    pub(super) const ALL: [Section; 6] =
        [Self::Runtimes, Self::Pools, Self::Queues, Self::Processes, Self::Triggers, Self::Tokens];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Runtimes => "runtimes",
            Self::Pools => "pools",
            Self::Queues => "queues",
            Self::Processes => "processes",
            Self::Triggers => "triggers",
            Self::Tokens => "tokens",
        }
    }

    pub(super) fn singular(self) -> &'static str {
        match self {
            Self::Runtimes => "runtime",
            Self::Pools => "pool",
            Self::Queues => "queue",
            Self::Processes => "process",
            Self::Triggers => "trigger",
            Self::Tokens => "token",
        }
    }

    /// Checks that the settings have the members of a request.
    pub(super) fn check(self, name: &str, settings: &Value) -> Result<(), String> {
        let text = |error: anyhow::Error| error.to_string();
        match self {
            Self::Runtimes => request::<RuntimeRequest>(settings).map(drop).map_err(text),
            Self::Pools => request::<PoolRequest>(settings).map(drop).map_err(text),
            Self::Queues => request::<QueueSettings>(settings).map(drop).map_err(text),
            Self::Processes => request::<ProcessRequest>(settings).map(drop).map_err(text),
            Self::Triggers => named::<TriggerRequest>(name, settings).map(drop).map_err(text),
            Self::Tokens => {
                let token: TokenRequest = named(name, settings).map_err(text)?;
                token.role.parse::<Role>().map(drop).map_err(|error| error.to_string())
            }
        }
    }

    /// Reads all objects. Queues with default settings are none: they exist because of their jobs.
    pub(super) async fn fetch(self, client: &Client) -> anyhow::Result<BTreeMap<String, Declared>> {
        let mut found = BTreeMap::new();
        match self {
            Self::Runtimes => {
                for runtime in all(async |cursor| client.runtimes(cursor).await).await? {
                    found.insert(runtime.name.clone(), Declared::of(None, &runtime::declared(runtime))?);
                }
            }
            Self::Pools => {
                for pool in all(async |cursor| client.pools(cursor).await).await? {
                    found.insert(pool.name.clone(), Declared::of(None, &pool::declared(pool))?);
                }
            }
            Self::Queues => {
                for queue in all(async |cursor| client.queues(cursor).await).await? {
                    let declared = Declared::of(None, &queue.settings)?;
                    if !is_empty(&declared.settings) {
                        found.insert(queue.name, declared);
                    }
                }
            }
            Self::Processes => {
                for process in all(async |cursor| client.processes(cursor).await).await? {
                    found.insert(process.name.clone(), Declared::of(None, &process::declared(process))?);
                }
            }
            Self::Triggers => {
                for trigger in all(async |cursor| client.triggers(cursor).await).await? {
                    let mut declared = Declared::of(Some(trigger.id), &trigger::declared(&trigger)?)?;
                    if let Some(settings) = declared.settings.as_object_mut() {
                        settings.remove("name");
                    }
                    found.insert(trigger.name, declared);
                }
            }
            Self::Tokens => {
                let tokens = all(async |cursor| client.tokens(None, cursor).await).await?;
                for token in tokens.into_iter().filter(|token| token.state == "active") {
                    let declared = Declared {
                        id: Some(token.id),
                        settings: token_settings(&token)?,
                        // The caller may be this token.
                        is_protected: token.role == Role::Admin.as_str()
                            || token.rights.iter().any(|right| right == Right::ManageTokens.as_str()),
                    };
                    found.insert(token.name, declared);
                }
            }
        }
        Ok(found)
    }

    /// The id with which the object is replaced.
    pub(super) async fn id_of(self, client: &Client, name: &str) -> anyhow::Result<Option<Uuid>> {
        match self {
            Self::Triggers => Ok(trigger::by_name(client, name).await?.map(|trigger| trigger.id)),
            _ => Ok(None),
        }
    }

    /// Creates or replaces an object. Returns the text of a new token.
    pub(super) async fn put(
        self,
        client: &Client,
        name: &str,
        id: Option<Uuid>,
        settings: &Value,
    ) -> anyhow::Result<Option<String>> {
        match self {
            Self::Runtimes => drop(client.set_runtime(name, &request(settings)?).await?),
            Self::Pools => drop(client.set_pool(name, &request(settings)?).await?),
            Self::Queues => {
                let mut settings = settings.clone();
                fill_policies(&mut settings);
                drop(client.set_queue(name, &request(&settings)?).await?);
            }
            Self::Processes => {
                let mut settings = settings.clone();
                if let Some(backoff) = settings.get_mut("backoff") {
                    super::compare::fill_retry(backoff);
                }
                drop(client.set_process(name, &request(&settings)?).await?);
            }
            Self::Triggers => {
                let request: TriggerRequest = named(name, settings)?;
                match id {
                    Some(id) => drop(client.replace_trigger(id, &request).await?),
                    None => drop(client.create_trigger(&request).await?),
                }
            }
            Self::Tokens => {
                let created = client.create_token(&named::<TokenRequest>(name, settings)?).await?;
                return Ok(Some(created.token));
            }
        }
        Ok(None)
    }

    /// Removes an object. A queue gets its default settings, because its jobs remain.
    pub(super) async fn remove(self, client: &Client, name: &str, id: Option<Uuid>) -> Result<(), ClientError> {
        match (self, id) {
            (Self::Runtimes, _) => {
                let wait = Duration::from_secs(30);
                client.operate_runtime(name, RuntimeOperation::Delete, None, wait, "cli").await.map(drop)
            }
            (Self::Pools, _) => client.delete_pool(name).await,
            (Self::Queues, _) => client.set_queue(name, &QueueSettings::default()).await.map(drop),
            (Self::Processes, _) => client.delete_process(name).await,
            (Self::Triggers, Some(id)) => client.delete_trigger(id).await,
            (Self::Tokens, Some(id)) => client.revoke_token(id).await,
            (Self::Triggers | Self::Tokens, None) => Ok(()),
        }
    }
}

fn fill_policies(settings: &mut Value) {
    if let Some(retry) = settings.get_mut("retry") {
        super::compare::fill_retry(retry);
    }
    for kind in settings.get_mut("kinds").and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut) {
        if let Some(retry) = kind.get_mut("retry") {
            super::compare::fill_retry(retry);
        }
    }
}

/// The request that would create the token: additional rights are those that its role does not include.
fn token_settings(token: &TokenView) -> anyhow::Result<Value> {
    let of_role = token.role.parse::<Role>().ok().map(Role::rights);
    let includes = |name: &str| of_role.is_some_and(|rights| rights.iter().any(|right| right.as_str() == name));
    let is_additional = |right: &&String| !includes(right);
    let rights: Vec<String> = token.rights.iter().filter(is_additional).cloned().collect();
    let request = TokenRequest {
        name: String::new(),
        role: token.role.clone(),
        tenant: None,
        queues: token.queues.clone(),
        rights: Some(rights).filter(|rights| !rights.is_empty()),
        serves: token.serves.clone(),
        expires_at: token.expires_at,
    };
    let mut settings = serde_json::to_value(&request)?;
    if let Some(settings) = settings.as_object_mut() {
        settings.remove("name");
    }
    Ok(settings)
}

async fn all<T>(page: impl AsyncFn(Option<&str>) -> Result<Page<T>, ClientError>) -> Result<Vec<T>, ClientError> {
    Ok(list::every_page(page).await?.items)
}

/// Parses through text, because raw JSON cannot be read from a value.
fn request<T: DeserializeOwned>(settings: &Value) -> anyhow::Result<T> {
    Ok(serde_json::from_str(&settings.to_string())?)
}

/// A request that is named by the key of the object.
fn named<T: DeserializeOwned>(name: &str, settings: &Value) -> anyhow::Result<T> {
    let mut settings = settings.as_object().cloned().unwrap_or_default();
    if settings.contains_key("name") {
        anyhow::bail!("`name` is the key of the object and must not be repeated");
    }
    settings.insert("name".into(), name.into());
    request(&Value::Object(settings))
}
