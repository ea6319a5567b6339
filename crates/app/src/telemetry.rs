//! Logs to stderr, and traces over OTLP where an endpoint is given (X11).

use anyhow::Context;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// Sends what is left when the program ends.
pub(crate) struct Telemetry {
    provider: Option<SdkTracerProvider>,
}

impl Telemetry {
    pub(crate) fn start(log: &str, log_json: bool, otlp_endpoint: Option<&str>) -> anyhow::Result<Self> {
        let filter = EnvFilter::try_new(log).with_context(|| format!("`{log}` is not a log filter"))?;
        let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
        let lines = if log_json { lines.json().boxed() } else { lines.compact().with_target(false).boxed() };
        let provider = otlp_endpoint.map(provider).transpose()?;
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
    // The exporter makes an HTTP client of its own, which asks for the process's provider of TLS. It may be there already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let exporter = SpanExporter::builder()
        .with_http()
        .with_endpoint(format!("{}/v1/traces", endpoint.trim_end_matches('/')))
        .build()
        .context("cannot export traces")?;
    let resource = Resource::builder().with_service_name("windlass").build();
    Ok(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build())
}
