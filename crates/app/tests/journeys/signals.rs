//! First signals on the command line.

use serde_json::{Value, json};

use crate::support::{CommandOutput, Program, Server, Work, eventually, on_both, windlass};

struct Cli<'a>(&'a Server);

impl Cli<'_> {
    async fn run(&self, args: &[&str]) -> CommandOutput {
        windlass(&[&["--url", &self.0.url], args].concat()).await
    }

    async fn json(&self, args: &[&str]) -> Value {
        let output = self.run(&[&["--output", "json"], args].concat()).await;
        assert_eq!(output.code, Some(0), "{output:?}");
        serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", output.stdout))
    }
}

/// Requirement S8.
#[tokio::test(flavor = "multi_thread")]
async fn failures_are_grouped_named_predicted_and_retried_from_the_command_line() {
    on_both(async |fixture| {
        let server = Server::start(&fixture).await;
        let cli = Cli(&server);
        let mut broken =
            Work::start(&fixture, &server, "scan", &[], "echo 'layer 7 of 10.0.0.1:5000 is broken' >&2; exit 65");
        let push =
            ["job", "push", "--queue", "scan", "--kind", "scan", "--subject", "nginx", "--max-attempts", "1", "--wait"];
        for _ in 0..3 {
            let failed = cli.run(&push).await;
            assert_eq!(failed.code, Some(1), "{failed:?}");
        }
        // It deregisters, so that the server assigns it no further job.
        assert_eq!(broken.terminate().await, Some(0), "{}", broken.stderr());
        let group = eventually("the failures are grouped", async || {
            let groups = cli.json(&["failures", "list"]).await;
            let group = groups["items"][0].clone();
            (group["count"] == 3 && group["signature_id"].is_string()).then_some(group)
        })
        .await;
        assert_eq!(group["subjects"], json!(["nginx"]), "{group}");
        let (group_id, signature) =
            (group["group_id"].as_str().unwrap_or(""), group["signature_id"].as_str().unwrap_or(""));
        let table = cli.run(&["failures", "list"]).await;
        assert!(table.stdout.contains("layer # of <address> is broken"), "{table:?}");
        cli.json(&["signature", "confirm", signature]).await;
        let named = cli.json(&["signature", "set", signature, "--cause", "a full disk", "--mttr-p50", "300"]).await;
        assert_eq!((&named["status"], &named["outcome"]["likely_cause"]), (&json!("confirmed"), &json!("a full disk")));
        assert!(cli.run(&["signature", "list"]).await.stdout.contains("a full disk"));

        let next = cli.json(&["job", "push", "--queue", "scan", "--kind", "scan", "--subject", "nginx"]).await;
        let id = next["id"].as_str().unwrap_or("");
        let push = ["job", "push", "--queue", "scan", "--kind", "scan", "--subject", "nginx", "--wait"];
        let watch = Program::windlass(&fixture, ["--url", server.url.as_str()].into_iter().chain(push));
        eventually("the expected failure is shown", async || {
            watch.stderr().contains("usually a full disk; clears in about 5 min").then_some(())
        })
        .await;
        assert_eq!(cli.run(&["job", "cancel", id]).await.code, Some(0));
        let replayed = cli.json(&["failures", "replay", group_id]).await;
        assert_eq!(replayed["jobs"].as_array().map(Vec::len), Some(3), "{replayed}");

        // Each command with --wait sends its own event once it can show something; the last one did for certain.
        let report = eventually("the events are reported", async || {
            let report = cli.json(&["ttfs", "report"]).await;
            (!report["items"].as_array()?.is_empty()).then_some(report)
        })
        .await;
        assert!(report["items"][0]["event_count"].as_i64() >= Some(1), "{report}");
        for command in [
            &["ttfs", "report"][..],
            &["ttfs", "slo"],
            &["failures", "show", group_id],
            &["signature", "show", signature],
        ] {
            let shown = cli.run(command).await;
            assert_eq!(shown.code, Some(0), "{shown:?}");
            assert!(!shown.stdout.contains('\u{1b}'), "no colors without a terminal: {shown:?}");
        }
        fixture.verify().await;
    })
    .await;
}
