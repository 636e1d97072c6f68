//! Spans for a collector, by OTLP over HTTP in its JSON form.
//!
//! One span per request, sent in batches by a task of its own. What the collector does not take in time is dropped and
//! counted; requests never wait for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hyper::header::HeaderValue;
use kvlane_engine_adapters::http_client::HttpClient;
use kvlane_engine_adapters::process::since_1970;
use kvlane_engine_adapters::tls::ClientTls;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::TraceContext;

/// Spans waiting to be sent; more are dropped.
const QUEUE: usize = 4096;
const BATCH: usize = 512;
const EVERY: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct Exporter {
    spans: mpsc::Sender<Value>,
    dropped: Arc<AtomicU64>,
}

impl Exporter {
    /// Starts sending to `endpoint`, such as `http://collector:4318`, until stopped.
    pub fn start(endpoint: &str, stop: CancellationToken) -> (Arc<Self>, impl Future<Output = ()> + use<>) {
        let (spans, queue) = mpsc::channel(QUEUE);
        let url = format!("{}/v1/traces", endpoint.trim_end_matches('/'));
        let dropped = Arc::new(AtomicU64::new(0));
        (Arc::new(Self { spans, dropped: dropped.clone() }), send(url, queue, dropped, stop))
    }

    /// Spans that were not sent.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

async fn send(
    url: String,
    mut queue: mpsc::Receiver<Value>,
    dropped: Arc<AtomicU64>,
    stop: CancellationToken,
) {
    let client = HttpClient::new(PATIENCE, 1 << 16, ClientTls::system());
    let mut failed = false;
    loop {
        let stopping = stop.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_none();
        loop {
            let mut spans = Vec::new();
            while spans.len() < BATCH
                && let Ok(span) = queue.try_recv()
            {
                spans.push(span);
            }
            if spans.is_empty() {
                break;
            }
            let sent = client.post_json(&url, request(&spans).to_string().into()).await;
            if let Err(error) = &sent
                && !failed
            {
                tracing::warn!(%error, "traces cannot be delivered");
            }
            failed = sent.is_err();
            if failed {
                dropped.fetch_add(spans.len() as u64, Ordering::Relaxed);
            }
        }
        if stopping {
            return;
        }
    }
}

fn request(spans: &[Value]) -> Value {
    json!({"resourceSpans": [{
        "resource": {"attributes": [
            text("service.name", "kvlane"),
            text("service.version", env!("CARGO_PKG_VERSION")),
        ]},
        "scopeSpans": [{"scope": {"name": "kvlane"}, "spans": spans}],
    }]})
}

fn text(key: &str, value: &str) -> Value {
    json!({"key": key, "value": {"stringValue": value}})
}

fn number(key: &str, value: u64) -> Value {
    // 64-bit numbers are texts in this form.
    json!({"key": key, "value": {"intValue": value.to_string()}})
}

/// One request's span, from its arrival until it is ended.
#[derive(Debug)]
pub struct Span {
    exporter: Arc<Exporter>,
    context: TraceContext,
    name: &'static str,
    request_id: String,
    began: Duration,
}

impl Span {
    pub fn begin(
        exporter: Arc<Exporter>,
        context: TraceContext,
        name: &'static str,
        request_id: String,
    ) -> Self {
        Self { exporter, context, name, request_id, began: since_1970() }
    }

    /// For the engine: its part of the trace hangs below this one.
    pub fn traceparent(&self) -> Option<HeaderValue> {
        self.context.header()
    }

    /// Hands it over to be sent. `error` is empty when all went well.
    pub fn end(self, worker: Option<&str>, status: Option<u16>, tokens: u64, error: &str) {
        let nanoseconds = |time: Duration| time.as_nanos().to_string();
        let parent = self.context.parent.map(|parent| format!("{parent:016x}")).unwrap_or_default();
        let mut attributes =
            vec![text("request.id", &self.request_id), number("gen_ai.usage.output_tokens", tokens)];
        attributes.extend(worker.map(|worker| text("kvlane.worker", worker)));
        attributes.extend(status.map(|status| number("http.response.status_code", u64::from(status))));
        let span = json!({
            "traceId": format!("{:032x}", self.context.trace),
            "spanId": format!("{:016x}", self.context.span),
            "parentSpanId": parent,
            "name": self.name,
            // A server's.
            "kind": 2,
            "startTimeUnixNano": nanoseconds(self.began),
            "endTimeUnixNano": nanoseconds(since_1970()),
            "attributes": attributes,
            "status": if error.is_empty() { json!({}) } else { json!({"code": 2, "message": error}) },
        });
        if self.exporter.spans.try_send(span).is_err() {
            self.exporter.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}
