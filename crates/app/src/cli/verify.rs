//! `windlass verify`: checks all data invariants of a database.

use store::verify::VerifyReport;

use super::exit::Exit;
use super::migrate::{DatabaseArgs, check_schema};
use super::output::{self, Output};

pub(crate) async fn run(database: &DatabaseArgs, output: Output) -> anyhow::Result<Exit> {
    let store = database.open_existing().await?;
    check_schema(&store).await?;
    print_report(&store.verify().await?, output)
}

/// Prints the findings. The exit code is a failure if there are any.
pub(super) fn print_report(verdict: &VerifyReport, output: Output) -> anyhow::Result<Exit> {
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
        output::line(&format!("{} invariants checked: all hold.", verdict.checks))?;
    } else {
        for finding in &verdict.findings {
            output::line(&format!("BROKEN: {} ({})", finding.promise, output::many(finding.rows, "row")))?;
            for example in &finding.examples {
                output::line(&format!("    {}", output::clean(example)))?;
            }
        }
        let broken = verdict.findings.len();
        output::line(&format!("{} invariants checked: {broken} broken.", verdict.checks))?;
    }
    Ok(if verdict.findings.is_empty() { Exit::Done } else { Exit::Failed })
}
