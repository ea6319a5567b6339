//! Measures the time to render each dashboard page, with a given number of jobs.

use std::time::Instant;

use anyhow::{Context, bail};
use serde_json::{Value, json};

use super::drive::{HttpServer, Transport};
use super::figure::Figure;
use super::measure;
use super::raw::RawConnection;
use super::{BenchArgs, ScratchDatabase};
use crate::cli::output::note;

/// Requests per page and round. The very first is not counted, because caches are cold.
const SAMPLES: usize = 7;
/// Upper limit for the median time of a page.
const MAX_MEDIAN_MS: f64 = 200.0;
/// Objects other than jobs that pages list.
const SUBJECTS: usize = 200;
const WORKERS: usize = 50;
const TRIGGERS: usize = 20;
const RUNTIMES: usize = 5;

pub(super) async fn measure(args: &BenchArgs, jobs: u64) -> anyhow::Result<Vec<Figure>> {
    let samples = SAMPLES * args.rounds.max(1);
    let scratch = ScratchDatabase::open(args.database.as_deref()).await?;
    let transport = HttpServer::start(&scratch.store).await?;
    scratch.store.fill_pages(jobs).await?;
    let mut server = transport.producer().await?;
    fill_installation(&mut server).await?;
    let mut figures = Vec::new();
    for (name, path) in pages(&mut server).await? {
        let mut took_ms = Vec::with_capacity(samples);
        let began = Instant::now();
        for sample in 0..=samples {
            let sent_at = Instant::now();
            let (status, page) = server.ask("GET", &path, "").await?;
            if status != 200 {
                bail!("{path} answered {status}: {}", String::from_utf8_lossy(&page));
            }
            if sample > 0 {
                took_ms.push(sent_at.elapsed().as_secs_f64() * 1_000.0);
            }
        }
        took_ms.sort_by(f64::total_cmp);
        let (median, slowest) = (took_ms[samples / 2], took_ms[samples - 1]);
        if median > MAX_MEDIAN_MS {
            note(&format!("{name} takes {median:.0} ms; the limit is {MAX_MEDIAN_MS:.0} ms"));
        }
        let figure = measure::figure(&transport, &format!("page {name}"), jobs, began.elapsed());
        figures.push(Figure { value: median, unit: "ms".into(), p99: Some(slowest), ..figure });
    }
    scratch.wipe().await?;
    Ok(figures)
}

/// Creates other objects of a typical installation through the API, which is fast enough for them.
async fn fill_installation(server: &mut RawConnection) -> anyhow::Result<()> {
    let mut put = async |method: &str, path: String, body: Value| -> anyhow::Result<()> {
        let (status, answer) = server.ask(method, &format!("/api/v1/{path}"), &body.to_string()).await?;
        if !(200..300).contains(&status) {
            bail!("{path} answered {status}: {}", String::from_utf8_lossy(&answer));
        }
        Ok(())
    };
    for process in ["patch", "scan"] {
        let selector = json!({"all": [{"fact": "os", "exists": true}]});
        // No job of these processes may be created while pages are measured.
        let process_spec = json!({"selector": selector, "queue": "fleet", "kind": process, "max_active": 1});
        put("PUT", format!("processes/{process}"), process_spec).await?;
    }
    for number in 0..SUBJECTS {
        put("PUT", format!("subjects/machine-{number}"), json!({"kind": "machine", "facts": {"os": "debian12"}}))
            .await?;
    }
    for number in 0..WORKERS {
        let queue = format!("queue-{}", number % 10);
        put("POST", "workers".into(), json!({"name": format!("worker-{number}"), "queues": [queue], "lease_s": 3600}))
            .await?;
    }
    for number in 0..TRIGGERS {
        let target = json!({"job": {"queue": "reports", "kind": "nightly"}});
        let filter = json!({"schedule": "0 3 1 1 *"});
        let trigger =
            json!({"name": format!("trigger-{number}"), "source": "cron", "filter": filter, "target": target});
        put("POST", "triggers".into(), trigger).await?;
    }
    for number in 1..=RUNTIMES {
        put("PUT", format!("runtimes/runtime-{number}"), json!({"image": "example/model:1.0.0"})).await?;
    }
    let member = |number: usize| json!({"affinity": format!("model-{number}"), "runtime": format!("runtime-{number}")});
    let members: Vec<Value> = (1..=RUNTIMES).map(member).collect();
    put("PUT", "pools/gpu".into(), json!({"slots": 1, "queue": "queue-0", "members": members})).await
}

/// The pages to measure, with the common filters of the jobs page.
async fn pages(server: &mut RawConnection) -> anyhow::Result<Vec<(String, String)>> {
    let mut find = async |path: &str, member: &str| -> anyhow::Result<String> {
        let (_, answer) = server.ask("GET", path, "").await?;
        let answer: Value = serde_json::from_slice(&answer)?;
        let found = if member == "next_cursor" { &answer[member] } else { &answer["items"][0][member] };
        Ok(found.as_str().with_context(|| format!("{path} has no {member}: {answer}"))?.to_owned())
    };
    let failed = find("/api/v1/jobs?state=failed&limit=1", "id").await?;
    let waiting = find("/api/v1/jobs?state=queued&queue=queue-1&limit=1", "id").await?;
    let cursor = find("/api/v1/jobs?limit=500", "next_cursor").await?;
    let delivery = find("/api/v1/deliveries?limit=1", "id").await?;
    let whole = [
        "/",
        "/queues",
        "/pools",
        "/workers",
        "/subjects",
        "/subjects/machine-10",
        "/failures",
        "/dead-letters",
        "/dead-letters?queue=queue-0",
        "/dead-letters?resolved=true",
        "/triggers",
        "/deliveries",
        "/deliveries?state=failed",
        "/runtimes",
        "/runtimes/runtime-1",
        "/signals",
        "/history",
        "/tokens",
        "/system",
        "/jobs",
        "/jobs?state=queued",
        "/jobs?state=failed",
        "/jobs?state=canceled",
        "/jobs?queue=queue-3",
        "/jobs?queue=queue-3&state=succeeded",
        "/jobs?queue=queue-3&kind=kind-1&state=failed",
        "/jobs?queue=queue-0&affinity=model-3",
        "/jobs?subject=machine-10",
        "/jobs?run=run-7",
        "/jobs?tag=nightly",
        "/jobs?text=kind-1",
        "/jobs?text=BOOM",
        "/jobs?text=nowhere",
    ];
    let mut pages: Vec<(String, String)> = whole.iter().map(|path| (path.to_string(), path.to_string())).collect();
    pages.push(("/jobs, an old page".into(), format!("/jobs?cursor={cursor}")));
    pages.push(("/jobs/{id}, failed".into(), format!("/jobs/{failed}")));
    pages.push(("/jobs/{id}, waiting".into(), format!("/jobs/{waiting}")));
    pages.push(("/deliveries/{id}".into(), format!("/deliveries/{delivery}")));
    Ok(pages)
}
