//! A client that costs little: its bodies are written by hand and answers are read for where they end.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use memchr::memmem;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::catalogue::Catalogue;
use super::scenario::Scenario;

/// What became of some requests.
#[derive(Clone, Debug, Default)]
pub struct Sent {
    pub answered: usize,
    pub failed: usize,
    /// The first of what went wrong.
    pub why: Option<String>,
    /// Milliseconds to an answer's first bytes, and to its end.
    pub first_ms: Vec<f64>,
    pub whole_ms: Vec<f64>,
    /// Blocks the router said its worker held, where it says so.
    pub said_held: usize,
    pub seconds: f64,
    /// Long prompts of another client that were not answered.
    pub failed_beside: usize,
}

impl Sent {
    fn add(&mut self, other: Self) {
        self.answered += other.answered;
        self.failed += other.failed;
        self.why = self.why.take().or(other.why);
        self.first_ms.extend(other.first_ms);
        self.whole_ms.extend(other.whole_ms);
        self.said_held += other.said_held;
    }
}

#[derive(Clone, Debug)]
pub struct Client {
    pub address: SocketAddr,
    pub host: String,
    pub quick_ack: bool,
}

/// A question that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(60);

impl Client {
    /// Asks conversations `from..to` of a catalogue, all of their turns, as the scenario says.
    pub async fn ask(
        &self,
        scenario: &Scenario,
        catalogue: &Rc<Catalogue>,
        conversations: std::ops::Range<usize>,
    ) -> Sent {
        let begun = Instant::now();
        let next = Rc::new(Cell::new(conversations.start));
        let mut tasks = JoinSet::new();
        // Dropped, and with it what it asks, when the others are done.
        let mut beside = JoinSet::new();
        let failed_beside = Rc::new(Cell::new(0));
        if !catalogue.beside().is_empty() {
            let (client, catalogue, besides_failed) =
                (self.clone(), catalogue.clone(), failed_beside.clone());
            beside.spawn_local(async move {
                let (mut sent, mut wire) = (Sent::default(), None);
                // One after the other, and again from the first, for as long as the others take.
                for long in catalogue.beside().cycle() {
                    if client.request(&catalogue, (long, 0), None, &mut wire, &mut sent).await.is_err() {
                        wire = None;
                        besides_failed.set(besides_failed.get() + 1);
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                }
            });
        }
        match scenario.rate {
            None => {
                for _ in 0..scenario.connections {
                    let (client, catalogue, next) = (self.clone(), catalogue.clone(), next.clone());
                    let end = conversations.end;
                    tasks.spawn_local(async move {
                        let (mut sent, mut wire) = (Sent::default(), None);
                        while next.get() < end {
                            let conversation = next.replace(next.get() + 1);
                            client.conversation(&catalogue, conversation, None, &mut wire, &mut sent).await;
                        }
                        sent
                    });
                }
            }
            Some(rate) => {
                let turns = catalogue.turns() as f64;
                // Turns of a conversation follow each other so that all of them together come at that rate.
                let pause = Duration::from_secs_f64(turns / rate);
                for (n, conversation) in conversations.enumerate() {
                    let (client, catalogue) = (self.clone(), catalogue.clone());
                    let due = begun + pause.mul_f64(n as f64);
                    tasks.spawn_local(async move {
                        let (mut sent, mut wire) = (Sent::default(), None);
                        let step = pause.div_f64(turns);
                        client
                            .conversation(&catalogue, conversation, Some((due, step)), &mut wire, &mut sent)
                            .await;
                        sent
                    });
                }
            }
        }
        let mut all = Sent::default();
        while let Some(sent) = tasks.join_next().await {
            match sent {
                Ok(sent) => all.add(sent),
                Err(error) => {
                    all.failed += 1;
                    all.why = Some(error.to_string());
                }
            }
        }
        all.failed_beside = failed_beside.get();
        all.seconds = begun.elapsed().as_secs_f64();
        all
    }

    async fn conversation(
        &self,
        catalogue: &Catalogue,
        conversation: usize,
        due: Option<(Instant, Duration)>,
        wire: &mut Option<Wire>,
        sent: &mut Sent,
    ) {
        for turn in 0..catalogue.turns() {
            // Counted from when it should have been sent: who keeps it from being sent has it counted against him.
            let from = match due {
                Some((begin, step)) => {
                    let due = begin + step.mul_f64(turn as f64);
                    tokio::time::sleep_until(due).await;
                    Some(due)
                }
                None => None,
            };
            let asked = self.request(catalogue, (conversation, turn), from, wire, sent);
            let answered = tokio::time::timeout(PATIENCE, asked);
            let answered = answered.await.context("no answer in time").and_then(|answered| answered);
            match answered {
                Ok(()) => sent.answered += 1,
                Err(error) => {
                    sent.failed += 1;
                    sent.why.get_or_insert_with(|| format!("{error:#}"));
                    *wire = None;
                }
            }
        }
    }

    async fn request(
        &self,
        catalogue: &Catalogue,
        (conversation, turn): (usize, usize),
        due: Option<Instant>,
        wire: &mut Option<Wire>,
        sent: &mut Sent,
    ) -> anyhow::Result<()> {
        let wire = match wire {
            Some(wire) => wire,
            None => wire.insert(Wire::open(self.address).await?),
        };
        wire.body.clear();
        catalogue.body(conversation, turn, &mut wire.body);
        wire.out.clear();
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            self.host,
            wire.body.len()
        );
        wire.out.extend_from_slice(head.as_bytes());
        wire.out.extend_from_slice(&wire.body);
        let begun = due.unwrap_or_else(Instant::now);
        wire.stream.write_all(&wire.out).await.context("the request could not be written")?;
        wire.answer.clear();
        let (mut head, mut first) = (0, None);
        loop {
            if self.quick_ack {
                let _ = SockRef::from(&wire.stream).set_tcp_quickack(true);
            }
            ensure!(
                wire.stream.read_buf(&mut wire.answer).await? > 0,
                "the connection was closed in mid-answer"
            );
            if head == 0 {
                let Some(end) = memmem::find(&wire.answer, b"\r\n\r\n") else { continue };
                head = end + 4;
                let status = wire.answer.get(9..12).unwrap_or_default();
                ensure!(
                    status == b"200",
                    "status {}: {}",
                    String::from_utf8_lossy(status),
                    String::from_utf8_lossy(&wire.answer[head..])
                );
            }
            if first.is_none() && memmem::find(&wire.answer[head..], b"data: {").is_some() {
                first = Some(begun.elapsed());
            }
            if wire.answer.len() > head && wire.answer.ends_with(b"0\r\n\r\n") {
                break;
            }
        }
        let whole = begun.elapsed();
        if memmem::rfind(&wire.answer, b"data: [DONE]").is_none() {
            bail!("the answer ended without [DONE]: {}", String::from_utf8_lossy(&wire.answer[head..]));
        }
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        sent.first_ms.push(ms(first.unwrap_or(whole)));
        sent.whole_ms.push(ms(whole));
        sent.said_held += held(&wire.answer[..head]).unwrap_or(0);
        Ok(())
    }
}

/// Blocks in `x-kvlane-overlap: held/all`.
fn held(head: &[u8]) -> Option<usize> {
    const NAME: &[u8] = b"x-kvlane-overlap: ";
    let value = &head[memmem::find(head, NAME)? + NAME.len()..];
    let digits = value.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&value[..digits]).ok()?.parse().ok()
}

/// A connection and what goes over it.
struct Wire {
    stream: TcpStream,
    body: Vec<u8>,
    out: Vec<u8>,
    answer: Vec<u8>,
}

impl Wire {
    async fn open(address: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await.context("no connection")?;
        let _ = stream.set_nodelay(true);
        Ok(Self { stream, body: Vec::new(), out: Vec::new(), answer: Vec::with_capacity(64 << 10) })
    }
}
