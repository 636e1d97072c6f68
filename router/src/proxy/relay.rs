//! An answer on its way back: frames pass as they come, a copy is watched, and when it is over everything is settled.
//!
//! The body is pulled by the client's connection, so a slow client slows its worker down and nothing piles up here. A
//! client that goes away drops the relay, and with it the worker's connection: the engine notices at once.

use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use kvlane_engine_adapters::http_client::chain;
use serde_json::{Map, Value};
use tokio::time::{Instant, Sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::continuation::{Resume, Resumed, Resuming, Resumption};
use super::cut::Cut;
use super::settlement::Settlement;
use super::sse::SseWatch;
use super::unread::Unread;
use super::upstream::AnswerBody;
use super::usage::{Seeker, Usage};
use crate::error::{Failure, RouterError};
use crate::metrics::Outcome;

/// What the router answers with.
#[derive(Debug)]
pub enum Body {
    Whole(Bytes),
    Relay(Box<Relay>),
    Unread(Unread),
}

impl Body {
    /// Gives an answer up that is not read for so long.
    #[must_use]
    pub fn unless_unread(self, patience: Duration) -> Self {
        match self {
            Self::Relay(relay) => Self::Unread(Unread::new(relay, patience)),
            other => other,
        }
    }
}

impl Default for Body {
    fn default() -> Self {
        Self::Whole(Bytes::new())
    }
}

/// An answer broke off that could not be ended any other way.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BrokenOff(Failure);

impl BrokenOff {
    pub(super) fn new(failure: Failure) -> Self {
        Self(failure)
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        match self.get_mut() {
            Self::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Relay(relay) => relay.poll(cx).map(|part| part.map(|part| part.map(Frame::data))),
            Self::Unread(answer) => answer.poll(cx).map(|part| part.map(|part| part.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Relay(relay) => relay.over,
            Self::Unread(answer) => answer.is_over(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Relay(_) | Self::Unread(_) => SizeHint::default(),
        }
    }
}

/// How an answer is looked at.
#[derive(Debug)]
pub enum Watch {
    Stream(SseWatch),
    /// Kept to read its usage at the end, up to a size.
    Json(BytesMut),
    /// Too large for that: only its usage is looked for.
    Large(Seeker),
    Unseen,
}

/// How streams end.
const END: Bytes = Bytes::from_static(b"data: [DONE]\n\n");
/// Larger answers than this are not kept.
const MAX_JSON: usize = 4 << 20;

#[derive(serde::Deserialize)]
struct Answer {
    usage: Option<Usage>,
}

#[derive(Debug)]
pub struct Relay {
    /// None while somebody is looked for who goes on with it.
    upstream: Option<AnswerBody>,
    /// The part that was waited for before the client got any.
    first: Option<Bytes>,
    watch: Watch,
    settlement: Settlement,
    idle: Duration,
    last_frame: Instant,
    timer: Pin<Box<Sleep>>,
    /// Made when the router cannot wait any longer.
    cut: Cut,
    cut_made: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Who is woken by those two.
    waiting: Option<Waker>,
    over: bool,
    resume: Option<Box<dyn Resume>>,
    /// The search for somebody, and why it is needed.
    resuming: Option<(Awaited, Failure)>,
    /// Why nobody goes on.
    not_resumed: Option<&'static str>,
}

/// A search for somebody who goes on.
struct Awaited(Resuming);

impl std::fmt::Debug for Awaited {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Awaited")
    }
}

impl Relay {
    pub fn new(
        upstream: AnswerBody,
        first: Option<Bytes>,
        watch: Watch,
        settlement: Settlement,
        idle: Duration,
        cut: Cut,
    ) -> Self {
        Self {
            upstream: Some(upstream),
            first,
            watch,
            settlement,
            idle,
            last_frame: Instant::now(),
            timer: Box::pin(tokio::time::sleep(idle)),
            cut_made: Box::pin(cut.made()),
            cut,
            waiting: None,
            over: false,
            resume: None,
            resuming: None,
            not_resumed: None,
        }
    }

    /// An answer that breaks off is gone on with by whomever this finds.
    pub(super) fn resumed_by(&mut self, resume: Box<dyn Resume>) {
        self.resume = Some(resume);
    }

    pub(super) fn cut(&self) -> &Cut {
        &self.cut
    }

    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BrokenOff>>> {
        loop {
            if self.over {
                return Poll::Ready(None);
            }
            if let Some((Awaited(resuming), failure)) = &mut self.resuming {
                let (resumed, failure) = (ready!(resuming.as_mut().poll(cx)), *failure);
                self.resuming = None;
                match resumed {
                    Ok(Resumption::By(resumed)) => self.take_over(*resumed),
                    Ok(Resumption::Finished(events)) => return Poll::Ready(Some(Ok(self.finished(events)))),
                    Err(error) => {
                        tracing::debug!(worker = self.settlement.worker(), %error, "nobody goes on with the answer");
                        self.settlement.not_continued();
                        self.not_resumed = Some("no other worker could go on with it");
                        return Poll::Ready(self.end_early(failure));
                    }
                }
            }
            let gave_up = self.gave_up();
            let frame = match (self.first.take(), &mut self.upstream) {
                (Some(first), _) => Some(Ok(first)),
                (None, _) if gave_up => Some(Err(Failure::Status(500))),
                (None, None) => None,
                (None, Some(upstream)) => match Pin::new(upstream).poll_frame(cx) {
                    Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                        Ok(data) => Some(Ok(data)),
                        // Trailers say nothing here.
                        Err(_) => continue,
                    },
                    Poll::Ready(Some(Err(error))) => {
                        tracing::debug!(worker = self.settlement.worker(), error = %chain(&error), "answer broke off");
                        Some(Err(Failure::Closed))
                    }
                    Poll::Ready(None) => None,
                    Poll::Pending => Some(Err(ready!(self.poll_patience(cx)))),
                },
            };
            match frame {
                Some(Ok(data)) => {
                    let passed = self.pass(data);
                    // A body whose length was told is not asked for more once it is all there.
                    let over = self.upstream.as_ref().is_none_or(HttpBody::is_end_stream);
                    if over && !matches!(self.watch, Watch::Stream(_)) {
                        self.ended();
                    }
                    // All of it may be held back, or left out.
                    if !passed.is_empty() {
                        return Poll::Ready(Some(Ok(passed)));
                    }
                }
                Some(Err(failure)) if self.goes_on(failure) => {}
                Some(Err(failure)) => return Poll::Ready(self.broken(failure)),
                None if self.is_incomplete() && self.goes_on(Failure::Incomplete) => {}
                None => return Poll::Ready(self.ended()),
            }
        }
    }

    /// Ready when waiting has to end. The timer is set anew only when it fires, not with every frame.
    fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<Failure> {
        // Both know whom to wake from the first time on; then it is enough to see whether either has.
        let known = self.waiting.as_ref().is_some_and(|waiting| waiting.will_wake(cx.waker()));
        if known && !self.cut.is_made() && !self.timer.is_elapsed() {
            return Poll::Pending;
        }
        if self.cut_made.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Failure::ShuttingDown);
        }
        while self.timer.as_mut().poll(cx).is_ready() {
            let until = self.last_frame + self.idle;
            if until <= Instant::now() {
                return Poll::Ready(Failure::Timeout);
            }
            self.timer.as_mut().reset(until);
        }
        // A task that has had its share is told to wait without its timer being set.
        self.waiting = tokio::task::coop::has_budget_remaining().then(|| cx.waker().clone());
        Poll::Pending
    }

    fn pass(&mut self, data: Bytes) -> Bytes {
        self.last_frame = Instant::now();
        match &mut self.watch {
            Watch::Stream(watch) => {
                let passed = watch.feed(data);
                let tokens = std::mem::take(&mut watch.seen.tokens);
                if tokens > 0 {
                    self.settlement.tokens(tokens, self.last_frame);
                }
                // It is all there: a client that closes now has not left early.
                if watch.seen.done {
                    settle(&mut self.settlement, watch);
                }
                passed
            }
            Watch::Json(whole) => {
                self.settlement.answer_begins(self.last_frame);
                if whole.len() + data.len() <= MAX_JSON {
                    whole.extend_from_slice(&data);
                } else {
                    let mut seeker = Seeker::default();
                    seeker.feed(whole);
                    seeker.feed(&data);
                    self.watch = Watch::Large(seeker);
                }
                data
            }
            Watch::Large(seeker) => {
                seeker.feed(&data);
                data
            }
            Watch::Unseen => {
                self.settlement.answer_begins(self.last_frame);
                data
            }
        }
    }

    /// The worker's answer is over.
    fn ended(&mut self) -> Option<Result<Bytes, BrokenOff>> {
        match &mut self.watch {
            Watch::Stream(watch) => {
                if !watch.complete() {
                    return self.broken(Failure::Incomplete);
                }
                let lacks_end = watch.lacks_only_its_end();
                let mut rest = watch.rest();
                // Half of an event that says nothing any more.
                if lacks_end && !rest.is_empty() {
                    rest = END;
                }
                settle(&mut self.settlement, watch);
                self.over = true;
                (!rest.is_empty()).then_some(Ok(rest))
            }
            Watch::Json(whole) => {
                let answer = serde_json::from_slice::<Answer>(whole).ok();
                self.settlement.usage(answer.and_then(|answer| answer.usage));
                self.settlement.end(Outcome::Success);
                self.over = true;
                None
            }
            Watch::Large(seeker) => {
                self.settlement.usage(seeker.found.take());
                self.settlement.end(Outcome::Success);
                self.over = true;
                None
            }
            Watch::Unseen => {
                self.settlement.end(Outcome::Success);
                self.over = true;
                None
            }
        }
    }

    /// It will not come any more.
    fn broken(&mut self, failure: Failure) -> Option<Result<Bytes, BrokenOff>> {
        if let Watch::Stream(watch) = &mut self.watch {
            // The answer was whole already; how its connection ended is nobody's business.
            if watch.seen.done {
                self.over = true;
                return None;
            }
            if watch.lacks_only_its_end() {
                settle(&mut self.settlement, watch);
                self.over = true;
                return Some(Ok(END));
            }
        }
        self.settlement.worker_failed(failure);
        self.end_early(failure)
    }

    /// A stream ends with an error the client can read; anything else can only be cut.
    fn end_early(&mut self, failure: Failure) -> Option<Result<Bytes, BrokenOff>> {
        self.over = true;
        let error = match self.not_resumed {
            Some(why) => RouterError::NotContinued { failure, why },
            None => RouterError::BrokenOff(failure),
        };
        self.settlement.broken(error.class());
        match &mut self.watch {
            Watch::Stream(watch) => {
                self.settlement.malformed(watch.seen.malformed);
                self.settlement.usage(watch.seen.usage.take());
                // Where the engine has said itself what went wrong, its words are better.
                let said = watch.gave_up().cloned();
                Some(Ok(said.unwrap_or_else(|| error_event(&error, watch.in_mid_line()))))
            }
            _ => Some(Err(BrokenOff(failure))),
        }
    }

    /// Whether the engine has said that it cannot go on.
    fn gave_up(&self) -> bool {
        matches!(&self.watch, Watch::Stream(watch) if watch.gave_up().is_some())
    }

    fn is_incomplete(&self) -> bool {
        matches!(&self.watch, Watch::Stream(watch) if !watch.complete())
    }

    /// Looks for somebody who goes on with the answer. False when there is nobody to be looked for.
    fn goes_on(&mut self, failure: Failure) -> bool {
        let (Watch::Stream(watch), Some(resume)) = (&mut self.watch, &mut self.resume) else { return false };
        // An answer that has said its last word has nobody going on with it, whatever is missing behind that.
        if failure == Failure::ShuttingDown || watch.seen.done || watch.has_ended() {
            return false;
        }
        let failed = self.settlement.worker_instance();
        match watch.told().and_then(|told| resume.resume(told, failed)) {
            Ok(resuming) => {
                self.settlement.worker_failed(failure);
                // Its engine need not go on.
                self.upstream = None;
                self.resuming = Some((Awaited(resuming), failure));
                true
            }
            Err(why) => {
                self.settlement.not_continued();
                self.not_resumed = Some(why);
                false
            }
        }
    }

    /// Nothing was missing but its last events.
    fn finished(&mut self, events: Vec<Value>) -> Bytes {
        self.over = true;
        self.settlement.end(Outcome::Success);
        let identity = match &self.watch {
            Watch::Stream(watch) => watch.identity().cloned().unwrap_or_default(),
            _ => Map::new(),
        };
        let mut text = String::new();
        for event in events {
            let mut whole = identity.clone();
            whole.extend(event.as_object().cloned().unwrap_or_default());
            text.push_str(&format!("data: {}\n\n", Value::from(whole)));
        }
        text.push_str("data: [DONE]\n\n");
        text.into()
    }

    fn take_over(&mut self, resumed: Resumed) {
        let Resumed { answer, reservation, worker, sent, course, before, repeats, drops_usage } = resumed;
        if let Watch::Stream(watch) = &mut self.watch {
            watch.goes_on(before, repeats, drops_usage);
        }
        self.upstream = Some(answer.upstream);
        self.first = Some(answer.first);
        self.last_frame = Instant::now();
        self.settlement.continued(reservation, (worker, sent), course);
    }
}

/// A stream that was whole.
fn settle(settlement: &mut Settlement, watch: &mut SseWatch) {
    settlement.malformed(std::mem::take(&mut watch.seen.malformed));
    settlement.usage(watch.seen.usage.take());
    settlement.end(if watch.seen.error { Outcome::Error("internal") } else { Outcome::Success });
}

/// An error as a stream's last event; in the middle of a line that has to be ended first.
fn error_event(error: &RouterError, in_mid_line: bool) -> Bytes {
    let mut event = BytesMut::from(if in_mid_line { &b"\n\ndata: "[..] } else { &b"data: "[..] });
    event.extend_from_slice(&error.body());
    event.extend_from_slice(b"\n\n");
    event.freeze()
}
