//! Conversations with what was said in them, to be read while they go on.
//!
//! Bounded: of those that are over the oldest go first, very many at a time are only counted, and long texts lose their
//! middle.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use kvlane_engine_adapters::process::since_1970;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::Value;
use tokio::time::Instant;

use super::collector::Ended;
use super::decisions::Decision;
use crate::measure::Measured;

/// Conversations that go on and are kept, those that are over and still kept, turns of one that are kept, and of a text
/// the bytes at its beginning and end.
const MOST_ACTIVE: usize = 1000;
const MOST_ENDED: usize = 400;
const MOST_TURNS: usize = 16;
const BEGINNING: usize = 4096;
const END: usize = 2048;
/// Openings that are kept whole, and bytes of one.
const MOST_OPENINGS: usize = 64;
const LONGEST_OPENING: usize = 256 << 10;

/// How a conversation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    Active,
    Completed,
    Error,
    /// It ended early because the load did, or because fewer were wanted.
    Stopped,
}

/// A conversation in a line.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    pub id: u64,
    pub status: Standing,
    pub topic: Arc<str>,
    /// Turns that were answered, and those it is to have.
    pub turns_done: usize,
    pub turns_planned: usize,
    /// Seconds since 1970.
    pub started: f64,
    pub duration_s: f64,
}

/// A conversation with its turns.
#[derive(Clone, Debug, Serialize)]
pub struct Conversation {
    #[serde(flatten)]
    pub line: Line,
    pub session: String,
    pub turns: Vec<Turn>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TurnState {
    #[default]
    Asking,
    Done,
    Error,
    /// Its answer was not waited for.
    Stopped,
}

/// A question and its answer.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Turn {
    pub turn: usize,
    pub request_id: String,
    pub state: TurnState,
    pub user: String,
    /// Characters that are not kept.
    pub user_left_out: usize,
    pub assistant: String,
    pub assistant_left_out: usize,
    pub ttft_ms: Option<f64>,
    pub itl_ms: Option<f64>,
    pub tpot_ms: Option<f64>,
    pub latency_s: Option<f64>,
    pub output_tokens: Option<u64>,
    pub prompt_tokens: Option<u64>,
    pub cached_tokens: Option<u64>,
    pub worker: Option<String>,
    pub error: Option<&'static str>,
    pub complaint: Option<String>,
    /// Why it went there, where the router tells.
    pub decision: Option<Arc<Value>>,
}

/// All there are.
#[derive(Clone, Debug, Serialize)]
pub struct Listing {
    pub now: f64,
    /// Since the beginning, and now.
    pub started: u64,
    pub active: usize,
    /// The newest first.
    pub conversations: Vec<Line>,
}

#[derive(Debug)]
struct Page {
    topic: Arc<str>,
    session: String,
    status: Standing,
    turns_planned: usize,
    turns_done: usize,
    started: f64,
    began: Instant,
    ended: Option<Instant>,
    turns: VecDeque<Turn>,
}

#[derive(Debug, Default)]
struct Inner {
    next: u64,
    /// Those that are not kept included.
    active: usize,
    pages: BTreeMap<u64, Page>,
    ended: VecDeque<u64>,
    /// Whole, each text once.
    openings: Vec<Opening>,
}

/// What conversations of a topic begin with.
#[derive(Clone, Debug)]
pub struct Opening {
    pub topic: Arc<str>,
    pub text: Arc<str>,
}

#[derive(Debug)]
pub struct Book {
    keeps_texts: bool,
    inner: Mutex<Inner>,
}

/// The first and the last of a text, and how many characters are missing between them.
fn shortened(text: &str) -> (String, usize) {
    if text.len() <= BEGINNING + END {
        return (text.to_owned(), 0);
    }
    let boundary = |at: usize| (at..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    let (first, last) = (boundary(BEGINNING), boundary(text.len() - END));
    (format!("{} […] {}", &text[..first], &text[last..]), text[first..last].chars().count())
}

impl Page {
    fn line(&self, id: u64) -> Line {
        let until = self.ended.unwrap_or_else(Instant::now);
        Line {
            id,
            status: self.status,
            topic: self.topic.clone(),
            turns_done: self.turns_done,
            turns_planned: self.turns_planned,
            started: self.started,
            duration_s: until.saturating_duration_since(self.began).as_secs_f64(),
        }
    }

    fn turn(&mut self, turn: usize) -> Option<&mut Turn> {
        self.turns.iter_mut().rev().find(|of| of.turn == turn)
    }
}

impl Book {
    /// Without texts only figures are kept.
    pub fn new(keeps_texts: bool) -> Arc<Self> {
        Arc::new(Self { keeps_texts, inner: Mutex::default() })
    }

    pub(super) fn begins(
        self: &Arc<Self>,
        topic: &Arc<str>,
        session: &str,
        first_turn: usize,
        last_turn: usize,
    ) -> Talk {
        let mut inner = self.inner.lock();
        let id = inner.next;
        inner.next += 1;
        inner.active += 1;
        if inner.pages.len() - inner.ended.len() >= MOST_ACTIVE {
            return Talk { book: self.clone(), id, status: Standing::Stopped };
        }
        let page = Page {
            topic: topic.clone(),
            session: session.to_owned(),
            status: Standing::Active,
            turns_planned: last_turn,
            // One that begins in the middle has had the turns before.
            turns_done: first_turn - 1,
            started: since_1970().as_secs_f64(),
            began: Instant::now(),
            ended: None,
            turns: VecDeque::new(),
        };
        inner.pages.insert(id, page);
        Talk { book: self.clone(), id, status: Standing::Stopped }
    }

    /// A turn's decision was looked up.
    pub(super) fn decided(&self, id: u64, turn: usize, decision: &Decision) {
        if let Some(turn) = self.inner.lock().pages.get_mut(&id).and_then(|page| page.turn(turn)) {
            turn.decision = Some(decision.explained.clone());
            // A client knows engines by number.
            let number = turn.worker.as_ref().and_then(|id| id.parse::<u64>().ok());
            let answered = |of: &&Value| turn.worker.is_none() || of["id"].as_u64() == number;
            let candidates = decision.explained["candidates"].as_array();
            let named =
                candidates.and_then(|all| all.iter().find(answered)).and_then(|of| of["worker"].as_str());
            turn.worker = named.map(str::to_owned).or(turn.worker.take());
        }
    }

    /// What conversations began with, each text once.
    pub fn openings(&self) -> Vec<Opening> {
        self.inner.lock().openings.clone()
    }

    /// Another load begins, about other documents.
    pub fn forget_openings(&self) {
        self.inner.lock().openings.clear();
    }

    pub fn list(&self, most: usize) -> Listing {
        let inner = self.inner.lock();
        Listing {
            now: since_1970().as_secs_f64(),
            started: inner.next,
            active: inner.active,
            conversations: inner.pages.iter().rev().take(most).map(|(id, page)| page.line(*id)).collect(),
        }
    }

    /// None when it is forgotten, or never was.
    pub fn read(&self, id: u64) -> Option<Conversation> {
        let inner = self.inner.lock();
        let page = inner.pages.get(&id)?;
        let turns = page.turns.iter().cloned().collect();
        Some(Conversation { line: page.line(id), session: page.session.clone(), turns })
    }
}

/// A conversation that goes on. One that is dropped without its end was stopped.
#[derive(Debug)]
pub(super) struct Talk {
    book: Arc<Book>,
    id: u64,
    /// What it will have been.
    status: Standing,
}

impl Talk {
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    fn with(&self, change: impl FnOnce(&mut Page)) {
        if let Some(page) = self.book.inner.lock().pages.get_mut(&self.id) {
            change(page);
        }
    }

    fn kept(&self, text: &str) -> (String, usize) {
        if self.book.keeps_texts { shortened(text) } else { (String::new(), text.chars().count()) }
    }

    pub(super) fn asks(&self, turn: usize, request_id: &str, question: &str) {
        let (user, user_left_out) = self.kept(question);
        if turn == 1 && self.book.keeps_texts && question.len() <= LONGEST_OPENING {
            self.opens(question);
        }
        let turn = Turn { turn, request_id: request_id.to_owned(), user, user_left_out, ..Turn::default() };
        self.with(|page| {
            if page.turns.len() >= MOST_TURNS {
                page.turns.pop_front();
            }
            page.turns.push_back(turn);
        });
    }

    fn opens(&self, question: &str) {
        let mut inner = self.book.inner.lock();
        let Some(topic) = inner.pages.get(&self.id).map(|page| page.topic.clone()) else { return };
        if inner.openings.iter().any(|known| &*known.text == question) {
            return;
        }
        // The first ones stay: whoever asks for their blocks asks once.
        if inner.openings.len() < MOST_OPENINGS {
            inner.openings.push(Opening { topic, text: question.into() });
        }
    }

    pub(super) fn answers(
        &self,
        turn: usize,
        measured: &Measured,
        worker: Option<&str>,
        complaint: Option<&str>,
        text: &str,
    ) {
        let (assistant, assistant_left_out) = self.kept(text);
        let ms = |seconds: Option<f64>| seconds.map(|seconds| seconds * 1e3);
        self.with(|page| {
            page.turns_done += usize::from(measured.error.is_none());
            let Some(turn) = page.turn(turn) else { return };
            *turn = Turn {
                state: if measured.error.is_none() { TurnState::Done } else { TurnState::Error },
                assistant,
                assistant_left_out,
                ttft_ms: ms(measured.ttft_s),
                itl_ms: ms(measured.itl_mean_s),
                tpot_ms: ms(measured.tpot_s),
                latency_s: Some(measured.e2e_s),
                output_tokens: Some(measured.output_tokens),
                prompt_tokens: measured.prompt_tokens,
                cached_tokens: measured.cached_tokens,
                worker: worker.map(str::to_owned),
                error: measured.error.map(|class| class.name()),
                complaint: complaint.map(str::to_owned),
                ..std::mem::take(turn)
            };
        });
    }

    pub(super) fn ends(mut self, ended: Ended) {
        self.status = match ended {
            Ended::Whole => Standing::Completed,
            Ended::Failed => Standing::Error,
            Ended::CutShort => Standing::Stopped,
        };
    }

    fn close(&self, status: Standing) {
        let mut inner = self.book.inner.lock();
        inner.active -= 1;
        let Some(page) = inner.pages.get_mut(&self.id) else { return };
        page.status = status;
        page.ended = Some(Instant::now());
        for turn in page.turns.iter_mut().filter(|turn| turn.state == TurnState::Asking) {
            turn.state = TurnState::Stopped;
        }
        inner.ended.push_back(self.id);
        if inner.ended.len() > MOST_ENDED
            && let Some(oldest) = inner.ended.pop_front()
        {
            inner.pages.remove(&oldest);
        }
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        self.close(self.status);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured() -> Measured {
        Measured { ttft_s: Some(0.1), e2e_s: 2.0, output_tokens: 80, ..Measured::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_conversation_is_read_while_it_goes_on_and_after() {
        let book = Book::new(true);
        let talk = book.begins(&"stars".into(), "s-1", 1, 3);
        talk.asks(1, "s-1-1", "Why do they shine?");
        let asked = book.read(0).unwrap();
        assert_eq!((asked.line.status, asked.turns[0].state), (Standing::Active, TurnState::Asking));
        talk.answers(1, &measured(), Some("a"), None, "Because they are hot.");
        let decision = Decision::sample();
        book.decided(talk.id(), 1, &decision);
        tokio::time::advance(std::time::Duration::from_secs(3)).await;
        let seen = book.read(0).unwrap();
        let turn = &seen.turns[0];
        assert_eq!(
            (turn.user.as_str(), turn.assistant.as_str()),
            ("Why do they shine?", "Because they are hot.")
        );
        assert_eq!(
            (turn.ttft_ms, turn.latency_s, turn.worker.as_deref()),
            (Some(100.0), Some(2.0), Some("a"))
        );
        assert_eq!(turn.decision.as_deref(), Some(&*decision.explained));
        assert_eq!((seen.line.turns_done, seen.line.turns_planned, seen.line.duration_s), (1, 3, 3.0));
        talk.ends(Ended::Whole);
        tokio::time::advance(std::time::Duration::from_secs(3)).await;
        let listing = book.list(10);
        assert_eq!((listing.active, listing.conversations[0].duration_s), (0, 3.0));
        assert_eq!(listing.conversations[0].status, Standing::Completed);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let book = Book::new(true);
        drop(book.begins(&"t".into(), "s", 1, 3));
        assert_eq!(book.read(0).unwrap().line.status, Standing::Stopped, "dropped in the middle");
        let stays = book.begins(&"t".into(), "s", 1, 3);
        for _ in 0..2 * MOST_ENDED {
            book.begins(&"t".into(), "s", 1, 3).ends(Ended::Failed);
        }
        assert_eq!(book.list(usize::MAX).conversations.len(), MOST_ENDED + 1);
        assert!(book.read(0).is_none() && book.read(stays.id()).is_some(), "who goes on is not forgotten");
        for turn in 1..100 {
            stays.asks(turn, "r", &"ä".repeat(20_000));
        }
        let page = book.read(stays.id()).unwrap();
        assert_eq!((page.turns.len(), page.turns[0].turn), (MOST_TURNS, 84));
        let kept = &page.turns[0];
        assert!(
            kept.user.len() <= BEGINNING + END + 12 && kept.user_left_out + (BEGINNING + END) / 2 == 20_000
        );
        stays.ends(Ended::CutShort);
        assert_eq!(book.list(1).active, 0);
        let many: Vec<Talk> = (0..2 * MOST_ACTIVE).map(|_| book.begins(&"t".into(), "s", 1, 3)).collect();
        let listing = book.list(usize::MAX);
        assert_eq!(
            (listing.active, listing.conversations.len()),
            (2 * MOST_ACTIVE, MOST_ACTIVE + MOST_ENDED)
        );
        drop(many);
        assert_eq!((book.list(1).active, book.list(usize::MAX).conversations.len()), (0, MOST_ENDED));
        let silent = Book::new(false);
        let talk = silent.begins(&"t".into(), "s", 1, 1);
        talk.asks(1, "r", "secret");
        assert_eq!(
            (silent.read(0).unwrap().turns[0].user.as_str(), silent.read(0).unwrap().turns[0].user_left_out),
            ("", 6)
        );
    }
}
