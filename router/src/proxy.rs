//! Getting a request answered: sent to the chosen worker, to the next one if that fails before its first byte, and the
//! answer relayed.

pub mod breaker;
mod continuation;
mod cut;
mod http1;
mod ledger;
mod record;
mod relay;
mod settlement;
mod splice;
mod sse;
mod unread;
mod upstream;
mod usage;

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Limited};
use hyper::body::Body as _;
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER,
    TRANSFER_ENCODING, WWW_AUTHENTICATE,
};
use hyper::{HeaderMap, Method, Response, StatusCode};
use kvlane_engine_adapters::engine_facts::Engine;
use kvlane_engine_adapters::feed::FeedClock;
use kvlane_indexer::{Index, Overlap, WorkerId};
use serde_json::{Value, json};
use tokio::time::Instant;
use tower::retry::budget::{Budget, TpsBudget};

use self::breaker::Sent;
pub use self::continuation::{Resume, Resumed, Resuming, Resumption, Told};
pub use self::cut::Cut;
#[cfg(fuzzing)]
pub use self::http1::{Http1Error, ReadAnswer, read_pieces};
pub use self::ledger::{Ledger, PlacedBy};
pub use self::relay::{Body, BrokenOff, Relay, Watch};
pub use self::settlement::Settlement;
pub use self::sse::SseWatch;
pub use self::upstream::{AnswerBody, Connections, Upstreams};
use crate::config::Proxy as ProxySettings;
use crate::discovery::{Keeper, Served, Sight, Worker};
use crate::error::{Failure, RouterError, seconds};
use crate::index_feed::Feeds;
use crate::metrics::{Metrics, Migration, Outcome};
use crate::openai::ClientRequest;
use crate::scheduling::{Barred, Decision, Demand, Placement, Reservation, Scheduler};
use crate::telemetry::RequestId;

/// Everything that sends requests on shares one of these.
#[derive(Debug)]
pub struct Proxy {
    upstreams: Upstreams,
    budget: TpsBudget,
    retries: usize,
    first_byte: Duration,
    answer: Duration,
    idle: Duration,
    /// Text of an answer that is kept so that another worker can go on with it.
    continued_bytes: usize,
    metrics: Arc<Metrics>,
    scheduler: Arc<Scheduler>,
    index: Arc<Index>,
    clock: FeedClock,
    keeper: Arc<Keeper>,
    /// Ends every stream when there is no time left.
    cut: Cut,
}

/// What is sent.
#[derive(Clone, Debug)]
pub enum Payload {
    /// A chat or completion.
    Generate(Arc<ClientRequest>),
    /// Anything else, passed through.
    Raw { path: &'static str, body: Bytes, streams: bool },
}

impl Payload {
    fn path(&self) -> &'static str {
        match self {
            Self::Generate(request) => request.endpoint.path(),
            Self::Raw { path, .. } => path,
        }
    }

    fn body(&self, engine: Engine) -> Bytes {
        match self {
            Self::Generate(request) => request.body_for(engine),
            Self::Raw { body, .. } => body.clone(),
        }
    }

    pub fn streams(&self) -> bool {
        match self {
            Self::Generate(request) => request.streams(),
            Self::Raw { streams, .. } => *streams,
        }
    }
}

/// A placed request on its way.
#[derive(Debug)]
pub struct Journey {
    pub payload: Payload,
    /// As they go to the worker.
    pub headers: HeaderMap,
    pub served: Arc<Served>,
    pub demand: Demand,
    pub overlap: Overlap,
    pub placement: Placement,
    pub ledger: Ledger,
    pub expects: Expects,
    /// Whether the answer names its worker.
    pub names_worker: bool,
    /// Whether what the worker reports as cached may be held against what the index said.
    pub audited: bool,
    /// For placing it again.
    pub sight: Sight,
    /// Goes on with a streamed answer that breaks off; none where that is not wanted.
    pub resume: Option<Box<dyn Resume>>,
}

/// What has to be answered, and what is known of who could.
#[derive(Debug)]
pub struct Errand<'a> {
    pub payload: &'a Payload,
    pub headers: &'a HeaderMap,
    pub served: Arc<Served>,
    pub demand: &'a Demand,
    pub overlap: Overlap,
    pub placement: Placement,
    pub expects: Expects,
    pub sight: &'a Sight,
    /// For the log.
    pub id: &'a RequestId,
}

/// How an answer was come by, for the book about it.
#[derive(Debug, Default)]
pub struct Course {
    pub(super) attempts: usize,
    worker: Option<(String, WorkerId)>,
    held_blocks: usize,
    /// Whether the worker's events will say what it holds, and when that was looked at.
    confirmed: bool,
    epoch: u64,
    /// When it was placed again, and how.
    again: Option<(Decision, Instant)>,
}

impl Course {
    fn write(self, ledger: &mut Ledger, audited: bool) {
        ledger.attempts += self.attempts;
        ledger.worker = self.worker.or(ledger.worker.take());
        ledger.placed.held_blocks = self.held_blocks;
        ledger.placed.audited = audited && self.confirmed;
        ledger.placed.epoch = self.epoch;
        if let Some((decision, at)) = self.again {
            ledger.placed.decided(&decision, at);
        }
    }
}

/// An answer that has begun, and who gives it.
#[derive(Debug)]
pub struct Obtained {
    answer: Answer,
    reservation: Reservation,
    worker: Arc<Worker>,
    sent: Sent,
    course: Course,
}

impl Obtained {
    pub(crate) fn engine(&self) -> Engine {
        self.worker.about().engine
    }
}

/// What is expected of a worker's cache before its events speak.
#[derive(Clone, Copy, Debug)]
pub struct Expects {
    /// Whether a placement counts as cached where events will confirm it.
    pub confirmed: bool,
    /// How long it does where none will.
    pub unconfirmed_life: u32,
}

/// Retries are counted over this long.
const BUDGET_WINDOW: Duration = Duration::from_secs(10);
/// Ticks for which a worker without events is expected to hold what it has not begun to answer.
const UNANSWERED_LIFE: u32 = 10;
/// Larger errors than this are not passed on.
const MAX_ERROR: usize = 1 << 20;

impl Proxy {
    pub fn new(
        settings: &ProxySettings,
        metrics: Arc<Metrics>,
        scheduler: Arc<Scheduler>,
        index: Arc<Index>,
        keeper: Arc<Keeper>,
        clock: FeedClock,
        cut: Cut,
    ) -> Self {
        let share = settings.retry_budget_percent as f32 / 100.0;
        Self {
            upstreams: Upstreams::new(settings, keeper.tls()),
            budget: TpsBudget::new(BUDGET_WINDOW, settings.retry_budget_min, share.min(1000.0)),
            retries: settings.retries,
            first_byte: Duration::from_millis(settings.first_byte_timeout_ms),
            answer: Duration::from_millis(settings.answer_timeout_ms),
            idle: Duration::from_millis(settings.idle_timeout_ms),
            continued_bytes: settings.continued_kib << 10,
            metrics,
            scheduler,
            index,
            clock,
            keeper,
            cut,
        }
    }

    /// Has the request answered. Errors are for the client; its worker's answer, be it an error, is a response.
    pub async fn forward(&self, journey: Journey) -> Result<Response<Body>, RouterError> {
        let Journey { payload, headers, served, demand, overlap, placement, mut ledger, .. } = journey;
        self.budget.deposit();
        let blocks = demand.blocks.len();
        let errand = Errand {
            payload: &payload,
            headers: &headers,
            served,
            demand: &demand,
            overlap,
            placement,
            expects: journey.expects,
            sight: &journey.sight,
            id: &ledger.id,
        };
        match self.obtain(errand, &mut Vec::new()).await {
            Ok(Obtained { answer, reservation, worker, sent, course }) => {
                course.write(&mut ledger, journey.audited);
                ledger.status = Some(answer.head.status.as_u16());
                let held = (ledger.placed.held_blocks, blocks);
                let settlement =
                    Settlement::new(ledger, reservation, (worker.clone(), sent), self.metrics.clone());
                let mut response = self.relay(answer, &payload, settlement, &worker, journey.resume).await;
                if journey.names_worker {
                    name_worker(response.headers_mut(), &worker, held);
                }
                Ok(response)
            }
            Err((error, course)) => {
                course.write(&mut ledger, false);
                ledger.refused(&error);
                Err(error)
            }
        }
    }

    /// An answer's first bytes: from the worker it was placed on, or from others where that one has none. Whoever was asked
    /// is among `tried` afterwards.
    pub(crate) async fn obtain(
        &self,
        errand: Errand<'_>,
        tried: &mut Vec<u64>,
    ) -> Result<Obtained, (RouterError, Course)> {
        let Errand {
            payload,
            headers,
            mut served,
            demand,
            mut overlap,
            placement,
            expects,
            sight,
            id: request,
        } = errand;
        let mut reservation = placement.reservation;
        let mut course = Course::default();
        // Who answered with a 5xx. If several do, the request is to blame and not they.
        let mut internal_errors: Vec<(Arc<Worker>, Sent)> = Vec::new();
        let failure = loop {
            let id = reservation.worker();
            tried.push(id.instance);
            let Some(worker) = served.worker(id).cloned() else { break Failure::Connect };
            course.confirmed = self.note_placement(&worker, id, demand, &overlap, &expects);
            course.attempts += 1;
            course.worker = Some((worker.name.clone(), id));
            course.held_blocks = overlap.of(id).device as usize;
            course.epoch = worker.belief.epoch();
            // The place of a half-open breaker is taken here, and given back by whatever happens next.
            let sent = worker.breaker.sending();
            let trial = Trial(&worker, sent);
            let attempted = self.attempt(payload, headers, &worker, id);
            let attempted = self.cut.token().run_until_cancelled(attempted).await;
            let failure = match attempted {
                Some(Ok(answer)) => {
                    worker.breaker.answering(sent);
                    drop(trial);
                    if !course.confirmed {
                        let life = Some(expects.unconfirmed_life);
                        self.index.predict_for(id, &demand.blocks, self.clock.tick(), life);
                    }
                    internal_errors.iter().for_each(|(worker, sent)| worker.breaker.failed(*sent));
                    return Ok(Obtained { answer, reservation, worker, sent, course });
                }
                Some(Err(failure)) => failure,
                None => break Failure::ShuttingDown,
            };
            drop(trial);
            match failure {
                // A worker that says it is full is well.
                Failure::Status(429 | 503) => {}
                Failure::Status(_) => internal_errors.push((worker.clone(), sent)),
                _ => worker.breaker.failed(sent),
            }
            self.metrics.worker_failed(&worker.metrics, failure.name());
            tracing::warn!(
                request_id = %request,
                worker = worker.name,
                reason = failure.name(),
                attempts = course.attempts,
                "attempt failed"
            );
            if course.attempts > self.retries || !self.budget.withdraw() {
                break failure;
            }
            // Decided anew: who was there and what they had at the beginning may be long over.
            if let Some(now) = self.keeper.fleet().models.get(&served.name) {
                served = now.clone();
            }
            overlap = self.index.overlap(&demand.blocks, self.clock.tick());
            let Some(next) = self.place_elsewhere(demand, &overlap, &served, sight, tried) else {
                break failure;
            };
            self.metrics.retried(failure.name());
            self.metrics.migrated(&served.metrics, Migration::NewRequest);
            course.again = Some((next.decision, Instant::now()));
            reservation = next.reservation;
        };
        if let [(alone, sent)] = &internal_errors[..] {
            alone.breaker.failed(*sent);
        }
        let error = match failure {
            Failure::ShuttingDown => RouterError::Draining,
            last => RouterError::NoAnswer { model: served.name.clone(), tried: course.attempts, last },
        };
        Err((error, course))
    }

    /// The best of those that were not asked yet. A request that failed once does not wait again.
    pub(crate) fn place_elsewhere(
        &self,
        demand: &Demand,
        overlap: &Overlap,
        served: &Served,
        sight: &Sight,
        tried: &[u64],
    ) -> Option<Placement> {
        let policy = self.scheduler.policy();
        let mut standings = served.standings(sight, &policy, &self.index);
        for standing in standings.iter_mut().filter(|standing| tried.contains(&standing.worker.instance)) {
            standing.barred = standing.barred.or(Some(Barred::Tried));
        }
        let draw = if policy.takes_turns() { served.group.turn() } else { rand::random() };
        let now = self.scheduler.time(Instant::now());
        self.scheduler.place_anyway(demand, overlap, &standings, draw, now).ok()
    }

    /// Until its events say so, the worker is expected to hold what it is sent, if anything is. Whether they will.
    fn note_placement(
        &self,
        worker: &Worker,
        id: WorkerId,
        demand: &Demand,
        overlap: &Overlap,
        expects: &Expects,
    ) -> bool {
        let confirmed = worker.feeds.lock().as_ref().is_some_and(Feeds::confirms);
        if expects.confirmed || !confirmed {
            // It may still refuse: for long it is expected only of who answers.
            let life = (!confirmed).then(|| expects.unconfirmed_life.min(UNANSWERED_LIFE));
            self.index.predict_for(id, &demand.blocks, self.clock.tick(), life);
        }
        self.metrics.placed(&worker.metrics, overlap.of(id).device as usize, demand.blocks.len());
        confirmed
    }

    /// One worker's answer, once its first bytes are there.
    async fn attempt(
        &self,
        payload: &Payload,
        headers: &HeaderMap,
        worker: &Arc<Worker>,
        id: WorkerId,
    ) -> Result<Answer, Failure> {
        let about = worker.about();
        let body = payload.body(about.engine);
        let ranked = (about.ranks.len() > 1).then(|| with_rank(headers, id.dp_rank));
        let headers = ranked.as_ref().unwrap_or(headers);
        let patience = if payload.streams() { self.first_byte } else { self.answer };
        let answered = async {
            let response = self.upstreams.send(worker, Method::POST, payload.path(), headers, body).await?;
            let (head, mut upstream) = response.into_parts();
            let refuses = head.status.is_server_error() && head.status != StatusCode::NOT_IMPLEMENTED;
            if refuses || head.status == StatusCode::TOO_MANY_REQUESTS {
                return Err(Failure::Status(head.status.as_u16()));
            }
            // Headers alone are no answer: a worker may die right after them, and another can still be asked.
            let first = loop {
                match upstream.frame().await {
                    None if head.status.is_success() && matches!(payload, Payload::Generate(_)) => {
                        return Err(Failure::Incomplete);
                    }
                    None => break Bytes::new(),
                    Some(Ok(frame)) => {
                        if let Ok(data) = frame.into_data() {
                            break data;
                        }
                    }
                    Some(Err(_)) => return Err(Failure::Closed),
                }
            };
            Ok(Answer { head, first, upstream })
        };
        tokio::time::timeout(patience, answered).await.map_err(|_| Failure::Timeout)?
    }

    async fn relay(
        &self,
        answer: Answer,
        payload: &Payload,
        mut settlement: Settlement,
        worker: &Worker,
        resume: Option<Box<dyn Resume>>,
    ) -> Response<Body> {
        let Answer { head, first, upstream } = answer;
        let mut headers = passed_on(&head.headers);
        if !head.status.is_success() {
            // The engine refused, and says why.
            settlement.answer_begins(Instant::now());
            settlement.end(Outcome::Error("validation"));
            let (body, changed) = whole_error(head.status, first, upstream, self.idle).await;
            headers.remove(CONTENT_LENGTH);
            if changed {
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            }
            return respond(head.status, headers, Body::Whole(body));
        }
        if first.is_empty() && upstream.is_end_stream() {
            settlement.answer_begins(Instant::now());
            settlement.end(Outcome::Success);
            return respond(head.status, headers, Body::default());
        }
        let streamed = is_stream(&head.headers);
        let watch = match payload {
            Payload::Generate(request) if streamed => {
                let mut watch = SseWatch::new(request.adds_usage(worker.about().engine));
                if resume.is_some() {
                    watch.keep(self.continued_bytes);
                }
                Watch::Stream(watch)
            }
            Payload::Generate(_) => Watch::Json(BytesMut::new()),
            Payload::Raw { .. } => Watch::Unseen,
        };
        if streamed {
            headers.remove(CONTENT_LENGTH);
            headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
            headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
        }
        let mut relay = Relay::new(upstream, Some(first), watch, settlement, self.idle, self.cut.clone());
        if let Some(resume) = resume.filter(|_| streamed) {
            relay.resumed_by(resume);
        }
        respond(head.status, headers, Body::Relay(Box::new(relay)))
    }
}

/// A worker's answer that has begun.
#[derive(Debug)]
struct Answer {
    head: hyper::http::response::Parts,
    first: Bytes,
    upstream: AnswerBody,
}

/// Gives the place of a half-open breaker back, also when the client leaves in mid-attempt.
struct Trial<'a>(&'a Arc<Worker>, Sent);

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        self.0.breaker.abandoned(self.1);
    }
}

/// Whether it comes event by event.
fn is_stream(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}

/// Says who answers, and how many of the prompt's blocks it was known to hold.
fn name_worker(headers: &mut HeaderMap, worker: &Worker, (held, blocks): (usize, usize)) {
    headers.insert(HeaderName::from_static("x-kvlane-worker"), HeaderValue::from(worker.instance));
    if let Ok(overlap) = HeaderValue::from_str(&format!("{held}/{blocks}")) {
        headers.insert(HeaderName::from_static("x-kvlane-overlap"), overlap);
    }
}

/// vLLM's way of addressing one of its ranks.
fn with_rank(headers: &HeaderMap, rank: u32) -> HeaderMap {
    let mut headers = headers.clone();
    headers.insert(HeaderName::from_static("x-data-parallel-rank"), HeaderValue::from(rank));
    headers
}

fn respond(status: StatusCode, headers: HeaderMap, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// Headers that mean something between two neighbours only.
const HOP_BY_HOP: [&str; 8] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "upgrade",
];

/// Those that travel on. Who may call from which page is between the browser and us.
pub(crate) fn passed_on(headers: &HeaderMap) -> HeaderMap {
    let mut passed = headers.clone();
    // Whoever names a header in `connection` means it for the next neighbour only.
    let named: Vec<HeaderName> = headers
        .get_all(hyper::header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    let cross_origin = headers.keys().filter(|name| name.as_str().starts_with("access-control-"));
    named.iter().chain(cross_origin).for_each(|name| drop(passed.remove(name)));
    HOP_BY_HOP.iter().for_each(|name| drop(passed.remove(*name)));
    passed.remove(TRANSFER_ENCODING);
    passed.remove(hyper::header::ORIGIN);
    passed
}

/// An engine's error, in OpenAI's form if it has another. True when it was changed.
async fn whole_error(
    status: StatusCode,
    first: Bytes,
    upstream: AnswerBody,
    patience: Duration,
) -> (Bytes, bool) {
    let rest = tokio::time::timeout(patience, Limited::new(upstream, MAX_ERROR).collect()).await;
    let Ok(Ok(rest)) = rest else {
        let message =
            format!("the engine refused with status {} and did not say why in time", status.as_u16());
        return (RouterError::bad_request(None, message).body(), true);
    };
    let rest = rest.to_bytes();
    let body = if rest.is_empty() { first } else { [first, rest].concat().into() };
    match nested_error(&body) {
        Some(nested) => (nested, true),
        None => (body, false),
    }
}

/// TensorRT-LLM's errors are flat, and web frameworks have a form of their own.
fn nested_error(body: &[u8]) -> Option<Bytes> {
    let Ok(Value::Object(error)) = serde_json::from_slice::<Value>(body) else { return None };
    if error.contains_key("error") {
        return None;
    }
    let message = error.get("message").or(error.get("detail"))?;
    let message = message.as_str().map_or_else(|| message.to_string(), str::to_owned);
    let field = |name: &str| error.get(name).cloned().unwrap_or(Value::Null);
    let kind = error.get("type").cloned().unwrap_or_else(|| "invalid_request_error".into());
    let nested =
        json!({"error": {"message": message, "type": kind, "param": field("param"), "code": field("code")}});
    Some(nested.to_string().into())
}

#[cfg(fuzzing)]
pub fn nested(body: &[u8]) -> Option<Bytes> {
    nested_error(body)
}

/// An error as a whole answer.
pub fn refuse(error: &RouterError) -> Response<Body> {
    let mut response = Response::new(Body::Whole(error.body()));
    *response.status_mut() = error.status();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if error.status() == StatusCode::SERVICE_UNAVAILABLE {
        headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    match error {
        RouterError::MethodNotAllowed { allowed, .. } => {
            headers.insert(ALLOW, HeaderValue::from_static(allowed));
        }
        RouterError::Unauthorized { .. } => {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        RouterError::OverLimit { after, .. } => drop(headers.insert(RETRY_AFTER, seconds(*after).into())),
        _ => {}
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flat_errors_become_nested_and_nested_ones_stay() {
        let flat = br#"{"object":"error","message":"no","type":"BadRequestError","param":null,"code":400}"#;
        let nested: Value = serde_json::from_slice(&nested_error(flat).unwrap()).unwrap();
        assert_eq!(
            nested,
            json!({"error": {"message": "no", "type": "BadRequestError", "param": null, "code": 400}})
        );
        let detail: Value =
            serde_json::from_slice(&nested_error(br#"{"detail":"Not Found"}"#).unwrap()).unwrap();
        assert_eq!(detail["error"]["message"], "Not Found");
        for same in [&b"{\"error\": {\"message\": \"x\"}}"[..], b"nonsense", b"{}", b"[]"] {
            assert!(nested_error(same).is_none());
        }
    }

    #[test]
    fn headers_for_the_neighbour_stay_behind() {
        let headers: HeaderMap =
            [("connection", "close, x-private"), ("x-private", "1"), ("te", "x"), ("x-public", "2")]
                .into_iter()
                .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
                .collect();
        let passed = passed_on(&headers);
        assert_eq!(passed.len(), 1);
        assert!(passed.contains_key("x-public"));
    }
}
