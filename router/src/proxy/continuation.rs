//! Going on with an answer that broke off: another worker is told what was said so far, and the client sees one stream.
//!
//! The relay knows what was said and when it ends too early; who goes on, and what he is asked, is for whoever knows
//! prompts: [`Resume`] stands between the two.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use serde_json::Value;

use super::breaker::Sent;
use super::{Answer, Course, Obtained};
use crate::discovery::Worker;
use crate::error::RouterError;
use crate::scheduling::Reservation;

/// What a client has been told of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    pub text: String,
    /// At least so many tokens.
    pub tokens: u64,
}

/// Finds somebody who goes on.
pub trait Resume: fmt::Debug + Send {
    /// `failed` is the worker that did not end it. Errors say why nobody can go on.
    fn resume(&mut self, told: Told, failed: u64) -> Result<Resuming, &'static str>;
}

pub type Resuming = Pin<Box<dyn Future<Output = Result<Resumption, RouterError>> + Send>>;

/// How an answer that broke off comes to its end.
#[derive(Debug)]
pub enum Resumption {
    By(Box<Resumed>),
    /// It had as many tokens as it may have: these are its last events.
    Finished(Vec<Value>),
}

/// An answer that goes on where another broke off.
#[derive(Debug)]
pub struct Resumed {
    pub(super) answer: Answer,
    pub(super) reservation: Reservation,
    pub(super) worker: Arc<Worker>,
    pub(super) sent: Sent,
    pub(super) course: Course,
    /// Tokens of the answer that its worker was given as part of the prompt.
    pub(super) before: u64,
    /// What its text may begin with although the client has it already.
    pub(super) repeats: String,
    /// Whether its usage was asked for on the client's behalf.
    pub(super) drops_usage: bool,
}

impl Resumed {
    /// None when what was obtained is no stream.
    pub(crate) fn new(obtained: Obtained, before: u64, repeats: String, drops_usage: bool) -> Option<Self> {
        let Obtained { answer, reservation, worker, sent, course } = obtained;
        let streams = answer.head.status.is_success() && super::is_stream(&answer.head.headers);
        streams.then_some(Self { answer, reservation, worker, sent, course, before, repeats, drops_usage })
    }
}
