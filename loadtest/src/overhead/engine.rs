//! Engines that answer at once, announce what they store as vLLM does, and cost as little as can be.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context;
use kvlane_engine_adapters::vllm::publisher::{Endpoint, Publisher, PublisherConfig};
use kvlane_engine_adapters::vllm::wire::{Encoder, OutEvent, Spelling};
use kvlane_indexer::TokenId;
use memchr::memmem;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::catalogue::{BLOCK, Catalogue, answer_block, place_of};

#[derive(Clone, Debug)]
pub struct EngineSettings {
    pub model: String,
    /// Where the model's tokenizer is, for routers that ask.
    pub root: String,
    pub count: usize,
    pub chunks: usize,
    pub pace: Duration,
}

/// Some engines, for as long as this lives.
#[derive(Debug)]
pub struct Engines {
    shared: Rc<Shared>,
    pub workers: Vec<Addresses>,
    _tasks: JoinSet<()>,
}

#[derive(Clone, Debug)]
pub struct Addresses {
    pub http: SocketAddr,
    pub events: SocketAddr,
    pub replay: SocketAddr,
}

#[derive(Debug)]
struct Shared {
    settings: EngineSettings,
    catalogue: RefCell<Rc<Catalogue>>,
    /// Blocks of prompts that were there already, of all that were asked.
    held: Cell<usize>,
    asked: Cell<usize>,
}

/// What one engine holds.
struct Engine {
    held: RefCell<HashSet<u64>>,
    publisher: tokio::sync::Mutex<Publisher>,
}

const REPLAYED: usize = 10_000;

impl Engines {
    pub async fn start(settings: EngineSettings, catalogue: Rc<Catalogue>) -> anyhow::Result<Self> {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let shared = Rc::new(Shared {
            catalogue: RefCell::new(catalogue),
            held: Cell::new(0),
            asked: Cell::new(0),
            settings,
        });
        let (mut workers, mut tasks) = (Vec::new(), JoinSet::new());
        for _ in 0..shared.settings.count {
            let listener = TcpListener::bind(any).await.context("an engine's port")?;
            let config = PublisherConfig {
                endpoint: Endpoint::Bind(any),
                replay: Some(any),
                topic: String::new(),
                buffer_steps: REPLAYED,
                spelling: Spelling::Maps,
            };
            let publisher = Publisher::start(&config).await?;
            workers.push(Addresses {
                http: listener.local_addr()?,
                events: publisher.address().context("no port for events")?,
                replay: publisher.replay_address().context("no port for replays")?,
            });
            let engine =
                Rc::new(Engine { held: RefCell::default(), publisher: tokio::sync::Mutex::new(publisher) });
            tasks.spawn_local(accept(listener, engine, shared.clone()));
        }
        Ok(Self { shared, workers, _tasks: tasks })
    }

    /// What is asked from now on.
    pub fn expect(&self, catalogue: Rc<Catalogue>) {
        *self.shared.catalogue.borrow_mut() = catalogue;
        self.shared.held.set(0);
        self.shared.asked.set(0);
    }

    /// Blocks held when they were asked for, and all that were, since then.
    pub fn overlap(&self) -> (usize, usize) {
        (self.shared.held.get(), self.shared.asked.get())
    }
}

async fn accept(listener: TcpListener, engine: Rc<Engine>, shared: Rc<Shared>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let _ = stream.set_nodelay(true);
        let (engine, shared) = (engine.clone(), shared.clone());
        connections.spawn_local(async move {
            let _ = serve(stream, &engine, &shared).await;
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(mut stream: TcpStream, engine: &Engine, shared: &Shared) -> std::io::Result<()> {
    let mut buffer = Vec::with_capacity(64 << 10);
    loop {
        buffer.clear();
        let head = loop {
            if let Some(end) = memmem::find(&buffer, b"\r\n\r\n") {
                break end + 4;
            }
            if stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        };
        let length = header(&buffer[..head], b"content-length").unwrap_or(0);
        buffer.reserve((head + length).saturating_sub(buffer.len()));
        while buffer.len() < head + length {
            if stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        }
        if buffer.starts_with(b"POST /v1/chat/completions") {
            answer(&mut stream, &buffer[head..], engine, shared).await?;
        } else {
            stream.write_all(&about(&buffer, shared)).await?;
        }
    }
}

/// The number a header says, its name in any case.
pub(super) fn header(head: &[u8], name: &[u8]) -> Option<usize> {
    head.split(|byte| *byte == b'\n').find_map(|line| {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let value = std::str::from_utf8(&line[colon + 1..]).ok()?;
        line[..colon].eq_ignore_ascii_case(name).then(|| value.trim().parse().ok())?
    })
}

/// What routers ask of an engine before they use it.
fn about(request: &[u8], shared: &Shared) -> Vec<u8> {
    let EngineSettings { model, root, .. } = &shared.settings;
    let path = request.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
    let (kind, body) = match path {
        b"/v1/models" => (
            "application/json",
            format!(
                "{{\"object\":\"list\",\"data\":[{{\"id\":\"{model}\",\"object\":\"model\",\"created\":1,\"owned_by\":\"vllm\",\
                 \"root\":\"{root}\",\"parent\":null,\"max_model_len\":200000}}]}}"
            ),
        ),
        b"/metrics" => (
            "text/plain",
            format!(
                "vllm:cache_config_info{{block_size=\"{BLOCK}\",num_gpu_blocks=\"100000\"}} 1.0\n\
                 vllm:num_requests_running{{model_name=\"{model}\"}} 0.0\n\
                 vllm:num_requests_waiting{{model_name=\"{model}\"}} 0.0\n"
            ),
        ),
        b"/version" => ("application/json", "{\"version\":\"0.24.0\"}".to_owned()),
        b"/prometheus/metrics" | b"/server_info" | b"/get_server_info" => {
            return b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_vec();
        }
        _ => ("application/json", "{}".to_owned()),
    };
    format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
        .into_bytes()
}

/// The number behind the last `"seed":`.
fn number(body: &[u8]) -> Option<u64> {
    const FIELD: &[u8] = b"\"seed\":";
    let at = memmem::rfind(body, FIELD)? + FIELD.len();
    let digits = body[at..].trim_ascii_start();
    let digits = &digits[..digits.iter().take_while(|byte| byte.is_ascii_digit()).count()];
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Says that blocks were stored behind another one.
async fn announce(engine: &Engine, names: &[u64], parent: Option<u64>, tokens: &[TokenId]) {
    let event = OutEvent::Stored {
        names: names.to_vec(),
        parent,
        tokens,
        block_tokens: BLOCK,
        lora_name: None,
        cache_salt: None,
        session_id: None,
    };
    let batch = Encoder::default().batch(0.0, &[event]);
    let mut publisher = engine.publisher.lock().await;
    let numbered = publisher.number(batch);
    publisher.send(numbered).await;
}

async fn answer(
    stream: &mut TcpStream,
    body: &[u8],
    engine: &Engine,
    shared: &Shared,
) -> std::io::Result<()> {
    let catalogue = shared.catalogue.borrow().clone();
    let known = number(body).and_then(|number| {
        let (conversation, turn) = place_of(number);
        Some((number, catalogue.conversations.get(conversation)?, turn))
    });
    let Some((number, asked, turn)) = known else {
        return stream.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").await;
    };
    let names = &asked.names[..asked.blocks(turn)];
    let held = {
        let mut all = engine.held.borrow_mut();
        let held = names.partition_point(|name| all.contains(name));
        all.extend(&names[held..]);
        held
    };
    shared.held.set(shared.held.get() + held);
    shared.asked.set(shared.asked.get() + names.len());
    if held < names.len() {
        let parent = held.checked_sub(1).map(|last| names[last]);
        announce(engine, &names[held..], parent, &asked.tokens[held * BLOCK..names.len() * BLOCK]).await;
    }
    let EngineSettings { model, chunks, pace, .. } = &shared.settings;
    let chunk = |delta: &str, reason: &str| {
        let data = format!(
            "data: {{\"id\":\"chatcmpl-0123456789abcdef0123456789abcdef\",\"object\":\"chat.completion.chunk\",\
             \"created\":1700000000,\"model\":\"{model}\",\"choices\":[{{\"index\":0,\"delta\":{delta},\
             \"logprobs\":null,\"finish_reason\":{reason},\"token_ids\":null}}]}}\n\n"
        );
        format!("{:x}\r\n{data}\r\n", data.len())
    };
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
    let first = chunk("{\"role\":\"assistant\",\"content\":\"\",\"reasoning_content\":null}", "null");
    stream.write_all(format!("{head}{first}").as_bytes()).await?;
    let (word, last) = (chunk("{\"content\":\" of\"}", "null"), chunk("{\"content\":\" of\"}", "\"length\""));
    for n in 1..=*chunks {
        if !pace.is_zero() {
            tokio::time::sleep(*pace).await;
        }
        // What the answer fills is announced as well. Which tokens they are matters to nobody: no prompt goes on from here.
        let filled = asked.prompt_tokens(turn) + n;
        if filled.is_multiple_of(BLOCK) {
            let block = filled / BLOCK - 1;
            let parent = match block - names.len() {
                0 => names.last().copied(),
                before => Some(answer_block(number, before - 1)),
            };
            let name = answer_block(number, block - names.len());
            announce(engine, &[name], parent, &[n as u32; BLOCK]).await;
        }
        let text = if n == *chunks { &last } else { &word };
        stream.write_all(text.as_bytes()).await?;
    }
    let mut end = String::new();
    if memmem::find(body, b"\"include_usage\":true").is_some() {
        let (prompt, cached) = (asked.prompt_tokens(turn), held * BLOCK);
        let data = format!(
            "data: {{\"id\":\"chatcmpl-0123456789abcdef0123456789abcdef\",\"object\":\"chat.completion.chunk\",\
             \"created\":1700000000,\"model\":\"{model}\",\"choices\":[],\"usage\":{{\"prompt_tokens\":{prompt},\
             \"total_tokens\":{},\"completion_tokens\":{chunks},\"prompt_tokens_details\":{{\"cached_tokens\":{cached}}}}}}}\n\n",
            prompt + chunks
        );
        end = format!("{:x}\r\n{data}\r\n", data.len());
    }
    end += "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";
    stream.write_all(end.as_bytes()).await
}
