//! `windlass apply` and `windlass export`: a file declares queues, runtimes, pools, processes, triggers and tokens.
//!
//! The server is changed only where it differs from the file, so a second `apply` of a file changes nothing.

mod compare;
mod section;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use client::Client;
use serde_json::{Map, Value, json};

use super::exit::{Exit, UsageError};
use super::output::{self, Output, clean, many};
use compare::{Difference, is_unchanged};
use section::{Declared, Section};

/// Objects of one file.
const MAX_OBJECTS: usize = 5_000;
const FILE_BYTES: u64 = 16 << 20;

#[derive(Args)]
pub(crate) struct ApplyArgs {
    /// YAML or JSON file; - for stdin
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Show the changes without making them
    #[arg(long)]
    dry_run: bool,
    /// Remove objects that are missing in the sections of the file. Queues get their default settings; tokens that can
    /// manage tokens stay
    #[arg(long)]
    prune: bool,
}

#[derive(Args)]
pub(crate) struct ExportArgs {
    /// Section to write [default: all]; may be repeated
    #[arg(long, value_enum)]
    section: Vec<Section>,
}

/// The objects of a file by section and name.
type Setup = BTreeMap<Section, BTreeMap<String, Value>>;

/// A change of one object.
struct Change {
    section: Section,
    name: String,
    kind: ChangeKind,
}

enum ChangeKind {
    Create(Value),
    Update { to: Value, differences: Vec<Difference> },
    Remove(Declared),
}

/// Everything that `apply` would do, in order.
struct Plan {
    changes: Vec<Change>,
    unchanged: usize,
}

pub(crate) async fn apply(client: &Client, args: ApplyArgs, format: Output) -> anyhow::Result<Exit> {
    let setup = read(&args.file)?;
    let plan = plan(client, setup, args.prune).await?;
    if format == Output::Table {
        plan.print()?;
    }
    let mut tokens = Map::new();
    if !args.dry_run {
        for change in &plan.changes {
            let created = change.apply(client).await;
            let created = created.with_context(|| format!("{}.{}", change.section.as_str(), change.name))?;
            if let Some(token) = created {
                tokens.insert(change.name.clone(), token.into());
            }
        }
    }
    match format {
        Output::Json => output::json(&plan.json(args.dry_run, &tokens))?,
        Output::Table => {
            for (name, token) in &tokens {
                output::line(&format!("token {name}: {}", token.as_str().unwrap_or_default()))?;
            }
            if !tokens.is_empty() {
                output::note("Store the tokens now: they cannot be shown again.");
            }
            output::line(&plan.summary(args.dry_run))?;
        }
    }
    Ok(Exit::Done)
}

/// Applies the text of a file without printing anything.
pub(crate) async fn apply_text(client: &Client, text: &str) -> anyhow::Result<()> {
    let setup = parse(serde_yaml_ng::from_str(text)?).map_err(UsageError)?;
    for change in plan(client, setup, false).await?.changes {
        change.apply(client).await?;
    }
    Ok(())
}

pub(crate) async fn export(client: &Client, args: ExportArgs, format: Output) -> anyhow::Result<Exit> {
    let sections = if args.section.is_empty() { Section::ALL.to_vec() } else { args.section };
    let mut file = Map::new();
    for section in sections {
        let objects: Map<String, Value> = section
            .fetch(client)
            .await?
            .into_iter()
            .map(|(name, declared)| (name, declared.exported(section)))
            .collect();
        if !objects.is_empty() {
            file.insert(section.as_str().to_owned(), objects.into());
        }
    }
    match format {
        Output::Json => output::json(&file)?,
        Output::Table => output::line(serde_yaml_ng::to_string(&file)?.trim_end())?,
    }
    Ok(Exit::Done)
}

fn read(path: &Path) -> anyhow::Result<Setup> {
    let cannot = || format!("cannot read {}", path.display());
    let mut text = String::new();
    match path.to_str() {
        Some("-") => std::io::stdin().take(FILE_BYTES).read_to_string(&mut text).with_context(cannot)?,
        _ => std::fs::File::open(path)
            .with_context(cannot)?
            .take(FILE_BYTES)
            .read_to_string(&mut text)
            .with_context(cannot)?,
    };
    let wrong = |error: &dyn std::fmt::Display| UsageError(format!("{}: {error}", path.display()));
    // YAML is a superset of JSON.
    let file: Option<Map<String, Value>> = serde_yaml_ng::from_str(&text).map_err(|error| wrong(&error))?;
    Ok(parse(file.unwrap_or_default()).map_err(|error| wrong(&error))?)
}

fn parse(file: Map<String, Value>) -> Result<Setup, String> {
    let mut setup = Setup::new();
    for (key, objects) in file {
        let section = Section::ALL.into_iter().find(|section| section.as_str() == key).ok_or_else(|| {
            let all: Vec<&str> = Section::ALL.iter().map(|section| section.as_str()).collect();
            format!("unknown section `{key}`; sections are {}", all.join(", "))
        })?;
        let objects = match objects {
            Value::Null => Map::new(),
            Value::Object(objects) => objects,
            _ => return Err(format!("{key} must map names to settings")),
        };
        let mut named = BTreeMap::new();
        for (name, settings) in objects {
            let settings = if settings.is_null() { json!({}) } else { settings };
            section.check(&name, &settings).map_err(|error| format!("{key}.{name}: {error}"))?;
            named.insert(name, settings);
        }
        setup.insert(section, named);
    }
    let objects: usize = setup.values().map(BTreeMap::len).sum();
    if objects > MAX_OBJECTS {
        return Err(format!("the file has {objects} objects; the limit is {MAX_OBJECTS}"));
    }
    Ok(setup)
}

/// Compares the file with the server. Sections that the file does not have are ignored.
async fn plan(client: &Client, setup: Setup, prune: bool) -> anyhow::Result<Plan> {
    let mut plan = Plan { changes: Vec::new(), unchanged: 0 };
    let mut removals = Vec::new();
    // Pools own the settings of their queues.
    let pool_queues: Vec<String> = match (prune && setup.contains_key(&Section::Queues), setup.get(&Section::Pools)) {
        (true, Some(pools)) => {
            pools.iter().map(|(name, pool)| pool["queue"].as_str().unwrap_or(name).to_owned()).collect()
        }
        _ => Vec::new(),
    };
    for (section, objects) in setup {
        let mut current = section.fetch(client).await?;
        for (name, to) in objects {
            let kind = match current.remove(&name) {
                None => ChangeKind::Create(to),
                Some(declared) => {
                    let differences = compare::differences(section, &name, &declared.settings, &to);
                    if is_unchanged(&differences) {
                        plan.unchanged += 1;
                        continue;
                    }
                    if section == Section::Tokens {
                        let differences: Vec<String> = differences.iter().map(ToString::to_string).collect();
                        let differences = differences.join("; ");
                        let remedy =
                            "a token cannot be changed: revoke it with `windlass token revoke` and apply again";
                        return Err(UsageError(format!("tokens.{name} differs ({differences}); {remedy}")).into());
                    }
                    ChangeKind::Update { to, differences }
                }
            };
            plan.changes.push(Change { section, name, kind });
        }
        if prune {
            let removed = current.into_iter().filter(|(name, declared)| {
                let is_pool_queue = section == Section::Queues && pool_queues.contains(name);
                !is_pool_queue && !declared.is_protected
            });
            removals.extend(removed.map(|(name, declared)| Change {
                section,
                name,
                kind: ChangeKind::Remove(declared),
            }));
        }
    }
    // A pool must be removed before its runtimes.
    removals.sort_by_key(|removal| std::cmp::Reverse(removal.section));
    plan.changes.extend(removals);
    Ok(plan)
}

impl Change {
    /// Makes the change. Returns the text of a new token.
    async fn apply(&self, client: &Client) -> anyhow::Result<Option<String>> {
        match &self.kind {
            ChangeKind::Create(to) => self.section.put(client, &self.name, None, to).await,
            ChangeKind::Update { to, .. } => {
                let id = self.section.id_of(client, &self.name).await?;
                self.section.put(client, &self.name, id, to).await
            }
            ChangeKind::Remove(declared) => {
                self.section.remove(client, &self.name, declared.id).await?;
                Ok(None)
            }
        }
    }

    fn verb(&self) -> &'static str {
        match (&self.kind, self.section) {
            (ChangeKind::Create(_), _) => "create",
            (ChangeKind::Update { .. }, _) => "change",
            (ChangeKind::Remove(_), Section::Queues) => "reset",
            (ChangeKind::Remove(_), Section::Tokens) => "revoke",
            (ChangeKind::Remove(_), _) => "delete",
        }
    }
}

impl Plan {
    fn print(&self) -> anyhow::Result<()> {
        for change in &self.changes {
            let sign = match change.kind {
                ChangeKind::Create(_) => "\u{1b}[32m+",
                ChangeKind::Update { .. } => "\u{1b}[33m~",
                ChangeKind::Remove(_) => "\u{1b}[31m-",
            };
            output::line(&format!(
                "{sign} {} {} {}\u{1b}[0m",
                change.verb(),
                change.section.singular(),
                clean(&change.name)
            ))?;
            if let ChangeKind::Update { differences, .. } = &change.kind {
                for difference in differences {
                    output::line(&format!("    {}", clean(&difference.to_string())))?;
                }
            }
        }
        Ok(())
    }

    fn summary(&self, dry_run: bool) -> String {
        let changes = match self.changes.len() {
            0 => "No changes".to_owned(),
            some => format!("{} {}", many(some, "change"), if dry_run { "to make" } else { "made" }),
        };
        format!("{changes}, {} unchanged.", self.unchanged)
    }

    fn json(&self, dry_run: bool, tokens: &Map<String, Value>) -> Value {
        let changes: Vec<Value> = self
            .changes
            .iter()
            .map(|change| {
                let differences: Vec<String> = match &change.kind {
                    ChangeKind::Update { differences, .. } => differences.iter().map(ToString::to_string).collect(),
                    _ => Vec::new(),
                };
                json!({"action": change.verb(), "section": change.section.as_str(), "name": change.name,
                       "differences": differences})
            })
            .collect();
        json!({"dry_run": dry_run, "changes": changes, "unchanged": self.unchanged, "tokens": tokens})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<usize, String> {
        let file: Map<String, Value> = serde_yaml_ng::from_str(text).unwrap();
        parse(file).map(|setup| setup.values().map(BTreeMap::len).sum())
    }

    #[test]
    fn a_file_is_checked_before_anything_is_changed() {
        assert_eq!(parsed("queues:\n  mail: {concurrency: 2}\n  plain:\ntriggers:\n"), Ok(2));
        for (text, part) in [
            ("colours: {}", "unknown section `colours`; sections are runtimes"),
            ("queues: [mail]", "queues must map names"),
            ("queues: {mail: {speed: 2}}", "queues.mail: unknown field `speed`"),
            ("processes: {patch: {queue: q}}", "processes.patch: missing field"),
            ("tokens: {ci: {role: chief}}", "tokens.ci:"),
            ("triggers: {t: {name: t, source: kv, target: {}}}", "triggers.t: `name`"),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
