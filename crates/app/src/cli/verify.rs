//! `windlass verify`: every promise, checked on the rows themselves (X14).

use store::verify::Verdict;

use super::exit::Exit;
use super::migrate::{DatabaseArgs, check_schema};
use super::output::{self, Output};

pub(crate) async fn run(database: &DatabaseArgs, output: Output) -> anyhow::Result<Exit> {
    let store = database.open_existing().await?;
    check_schema(&store).await?;
    tell(&store.verify().await?, output)
}

/// Prints what was found; the exit code says whether all held.
pub(super) fn tell(verdict: &Verdict, output: Output) -> anyhow::Result<Exit> {
    if output == Output::Json {
        let findings: Vec<_> = verdict
            .findings
            .iter()
            .map(|finding| {
                serde_json::json!({"promise": finding.promise, "rows": finding.rows, "examples": finding.examples})
            })
            .collect();
        output::json(&serde_json::json!({"checks": verdict.checks, "findings": findings}))?;
    } else if verdict.findings.is_empty() {
        output::line(&format!("{} promises checked: all hold.", verdict.checks))?;
    } else {
        for finding in &verdict.findings {
            output::line(&format!("BROKEN: {} ({})", finding.promise, output::many(finding.rows, "row")))?;
            for example in &finding.examples {
                output::line(&format!("    {}", output::clean(example)))?;
            }
        }
        let broken = verdict.findings.len();
        output::line(&format!("{} promises checked: {broken} broken.", verdict.checks))?;
    }
    Ok(if verdict.findings.is_empty() { Exit::Done } else { Exit::Failed })
}
