//! Logs to stderr, and traces over OTLP if an endpoint is set.

use std::io::IsTerminal;

use anyhow::Context;
use clap::Args;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// Flags of long-running commands for logs and traces.
#[derive(Args)]
pub(crate) struct TelemetryArgs {
    /// Log level or filter: error, warn, info, debug
    #[arg(long, env = "WINDLASS_LOG", default_value = "warn")]
    log: String,
    /// Write logs as JSON lines
    #[arg(long, env = "WINDLASS_LOG_JSON")]
    log_json: bool,
    /// Send traces to this OTLP endpoint over HTTP
    #[arg(long, env = "WINDLASS_OTLP_ENDPOINT")]
    otlp_endpoint: Option<String>,
}

/// The installed exporters. `stop` flushes pending traces.
pub(crate) struct Telemetry {
    provider: Option<SdkTracerProvider>,
}

impl Telemetry {
    pub(crate) fn start(args: &TelemetryArgs) -> anyhow::Result<Self> {
        let TelemetryArgs { log, log_json, otlp_endpoint } = args;
        let filter = EnvFilter::try_new(log).with_context(|| format!("invalid log filter `{log}`"))?;
        let mut lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
        // Colors only on a terminal. The layer honors NO_COLOR itself.
        if !std::io::stderr().is_terminal() {
            lines.set_ansi(false);
        }
        let lines = if *log_json { lines.json().boxed() } else { lines.compact().with_target(false).boxed() };
        let provider = otlp_endpoint.as_deref().map(provider).transpose()?;
        if let Some(provider) = &provider {
            opentelemetry::global::set_tracer_provider(provider.clone());
        }
        let traces = provider.as_ref().map(|provider| {
            let spans = tracing_opentelemetry::layer().with_tracer(provider.tracer("windlass"));
            spans.with_filter(EnvFilter::new("info,windlass=info,server=info,engine=info"))
        });
        tracing_subscriber::registry().with(lines.with_filter(filter)).with(traces).init();
        Ok(Self { provider })
    }

    pub(crate) fn stop(self) {
        if let Some(provider) = self.provider {
            let _ = provider.shutdown();
        }
    }
}

fn provider(endpoint: &str) -> anyhow::Result<SdkTracerProvider> {
    // The exporter's HTTP client uses the process-wide TLS provider, which may already be installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let exporter = SpanExporter::builder()
        .with_http()
        .with_endpoint(format!("{}/v1/traces", endpoint.trim_end_matches('/')))
        .build()
        .context("cannot export traces")?;
    let resource = Resource::builder().with_service_name("windlass").build();
    Ok(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build())
}
