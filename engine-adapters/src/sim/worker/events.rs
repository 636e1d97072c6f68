//! What the simulated worker says about its cache: vLLM's ZeroMQ messages, and TensorRT-LLM's queue of events
//! that is emptied by asking.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use kvlane_indexer::{EngineBlockId, KvEvent, TokenId};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use super::faults::Faults;
use crate::sim::StepOutput;
use crate::vllm::publisher::{Endpoint, Numbered, PublishError, Publisher, PublisherConfig};
use crate::vllm::wire::{Encoder, OutEvent};

/// How events leave.
#[derive(Clone, Debug, Default)]
pub struct EventOptions {
    /// Over ZeroMQ, as vLLM does.
    pub publish: Option<PublisherConfig>,
    pub encoder: Encoder,
    /// Now and then a block is stored in a second copy, announced twice and removed twice, as vLLM does.
    pub second_copies: bool,
    /// Events kept for `POST /kv_cache_events`, as TensorRT-LLM does; the oldest go first.
    pub trtllm_buffer: Option<usize>,
}

/// A request's tokens and namespace, for the events that announce its blocks.
#[derive(Debug)]
pub(super) struct Announced {
    pub(super) tokens: Arc<[TokenId]>,
    pub(super) lora_name: Option<String>,
    pub(super) cache_salt: Option<String>,
    pub(super) session_id: Option<String>,
}

/// The old sockets close in their own time.
const REBIND_TRIES: u32 = 100;
const REBIND_PAUSE: Duration = Duration::from_millis(20);

/// Every this many blocks, one is stored in a second copy.
const SECOND_COPY_EVERY: u64 = 16;
/// Batches until a second copy is removed again, the block itself still there.
const SECOND_COPY_BATCHES: u64 = 8;

/// What a reset took away.
#[derive(Debug)]
enum Reset {
    Whole,
    Blocks(Vec<u64>),
}

fn removals<'a>(names: &[u64]) -> Vec<OutEvent<'a>> {
    names.iter().map(|name| OutEvent::Removed { name: *name }).collect()
}

pub(super) struct Events {
    options: EventOptions,
    block_tokens: usize,
    publisher: Option<Publisher>,
    /// A batch that waits for the next one to overtake it.
    held: Option<Numbered>,
    batches: u64,
    /// Second copies by block name, and the batch that removes them.
    copies: HashMap<u64, u64>,
    /// What a reset took away, to be said with the next step, as vLLM does.
    reset: Option<Reset>,
    trtllm: Arc<Mutex<TrtllmQueue>>,
    random: StdRng,
}

impl Events {
    pub(super) async fn start(
        options: EventOptions,
        block_tokens: usize,
        kv_blocks: usize,
        seed: u64,
    ) -> Result<Self, PublishError> {
        let publisher = match &options.publish {
            Some(config) => Some(Publisher::start(config).await?),
            None => None,
        };
        let trtllm = TrtllmQueue::new(options.trtllm_buffer, block_tokens, kv_blocks);
        Ok(Self {
            publisher,
            held: None,
            block_tokens,
            batches: 0,
            copies: HashMap::new(),
            reset: None,
            trtllm: Arc::new(Mutex::new(trtllm)),
            random: StdRng::seed_from_u64(seed),
            options,
        })
    }

    pub(super) fn trtllm(&self) -> Arc<Mutex<TrtllmQueue>> {
        self.trtllm.clone()
    }

    pub(super) fn publisher(&self) -> Option<&Publisher> {
        self.publisher.as_ref()
    }

    /// The cache was reset: whole when no request ran, else all but what requests use.
    pub(super) fn reset(&mut self, output: &StepOutput, whole: bool) {
        let removed = output.events.iter().filter_map(|event| match event {
            KvEvent::Removed { ids, .. } => Some(ids.iter().map(|id| id.to_u64())),
            _ => None,
        });
        let removed: Vec<u64> = removed.flatten().collect();
        // TensorRT-LLM has no word for a cleared cache.
        self.trtllm.lock().push(&removals(&removed));
        match &mut self.reset {
            reset if whole => {
                self.copies.clear();
                *reset = Some(Reset::Whole);
            }
            Some(Reset::Whole) => {}
            Some(Reset::Blocks(blocks)) => blocks.extend(removed),
            reset @ None => *reset = Some(Reset::Blocks(removed)),
        }
    }

    /// A new process: numbers from zero on, nothing to replay, the same addresses.
    pub(super) async fn restart(&mut self) {
        (self.held, self.reset, self.batches) = (None, None, 0);
        self.copies.clear();
        self.trtllm.lock().restart();
        let (Some(mut config), Some(old)) = (self.options.publish.clone(), self.publisher.take()) else {
            return;
        };
        // A port chosen by the system is kept.
        if let Some(address) = old.address() {
            config.endpoint = Endpoint::Bind(address);
        }
        config.replay = old.replay_address();
        drop(old);
        for _ in 0..REBIND_TRIES {
            match Publisher::start(&config).await {
                Ok(publisher) => {
                    self.publisher = Some(publisher);
                    return;
                }
                Err(error) => tracing::debug!(%error, "ports are not free yet"),
            }
            tokio::time::sleep(REBIND_PAUSE).await;
        }
        tracing::error!("events are silent: their ports did not become free again after a restart");
    }

    /// Says what a step changed. `announced` knows the requests whose blocks were stored.
    pub(super) async fn tell<'a>(
        &mut self,
        seconds: f64,
        output: &StepOutput,
        announced: impl Fn(crate::sim::RequestId) -> Option<&'a Announced>,
        faults: &Faults,
    ) {
        let mut events = Vec::with_capacity(output.events.len() + 1);
        match self.reset.take() {
            Some(Reset::Whole) => events.push(OutEvent::Cleared),
            Some(Reset::Blocks(blocks)) => events.extend(removals(&blocks)),
            None => {}
        }
        let said_before = events.len();
        let mut origins = output.origins.iter();
        for event in &output.events {
            match event {
                KvEvent::Removed { ids, .. } => {
                    events.extend(ids.iter().map(|id| OutEvent::Removed { name: id.to_u64() }));
                }
                KvEvent::Stored { parent, blocks, .. } => {
                    let Some(origin) = origins.next() else { continue };
                    let Some(request) = announced(origin.request) else { continue };
                    let first = origin.first_block * self.block_tokens;
                    let tokens = request.tokens.get(first..first + blocks.len() * self.block_tokens);
                    events.push(OutEvent::Stored {
                        names: blocks.iter().map(|block| block.id.to_u64()).collect(),
                        parent: parent.map(EngineBlockId::to_u64),
                        tokens: tokens.unwrap_or_default(),
                        block_tokens: self.block_tokens,
                        lora_name: request.lora_name.as_deref(),
                        cache_salt: request.cache_salt.as_deref(),
                        session_id: request.session_id.as_deref(),
                    });
                }
                KvEvent::Cleared { .. } => events.push(OutEvent::Cleared),
            }
        }
        if events.is_empty() {
            return;
        }
        self.trtllm.lock().push(&events[said_before..]);
        if self.options.second_copies {
            self.copy(&mut events);
        }
        self.batches += 1;
        let Some(publisher) = &mut self.publisher else { return };
        let numbered = publisher.number(self.options.encoder.batch(seconds, &events));
        let mut chance = |share: f64| share > 0.0 && self.random.random_bool(share);
        if chance(faults.drop_events) {
            return;
        }
        if self.held.is_none() && chance(faults.reorder_events) {
            self.held = Some(numbered);
            return;
        }
        let twice = chance(faults.duplicate_events);
        for numbered in
            [Some(numbered.clone()), twice.then_some(numbered), self.held.take()].into_iter().flatten()
        {
            publisher.send(numbered).await;
        }
    }

    /// Adds second copies: a block announced again, removed once while it is still there, and for good later.
    fn copy(&mut self, events: &mut Vec<OutEvent<'_>>) {
        let mut extra = Vec::new();
        let due = self.batches;
        self.copies.retain(|name, until| {
            let stays = *until > due;
            if !stays {
                extra.push(OutEvent::Removed { name: *name });
            }
            stays
        });
        for event in events.iter() {
            match event {
                OutEvent::Stored {
                    names,
                    parent,
                    tokens,
                    block_tokens,
                    lora_name,
                    cache_salt,
                    session_id,
                } => {
                    for (at, name) in
                        names.iter().enumerate().filter(|(_, name)| **name % SECOND_COPY_EVERY == 0)
                    {
                        self.copies.insert(*name, self.batches + SECOND_COPY_BATCHES);
                        extra.push(OutEvent::Stored {
                            names: vec![*name],
                            parent: at.checked_sub(1).map_or(*parent, |at| Some(names[at])),
                            tokens: &tokens[at * block_tokens..(at + 1) * block_tokens],
                            block_tokens: *block_tokens,
                            lora_name: *lora_name,
                            cache_salt: *cache_salt,
                            session_id: *session_id,
                        });
                    }
                }
                // Both copies go.
                OutEvent::Removed { name } if self.copies.remove(name).is_some() => {
                    extra.push(OutEvent::Removed { name: *name });
                }
                OutEvent::Removed { .. } | OutEvent::Cleared => {}
            }
        }
        events.append(&mut extra);
    }
}

/// Events as TensorRT-LLM's server hands them out: numbered, kept up to a bound, gone once asked for.
#[derive(Debug)]
pub(super) struct TrtllmQueue {
    bound: Option<usize>,
    window_tokens: usize,
    kv_blocks: usize,
    next: u64,
    events: VecDeque<Value>,
}

impl TrtllmQueue {
    fn new(bound: Option<usize>, block_tokens: usize, kv_blocks: usize) -> Self {
        let window_tokens = block_tokens * kv_blocks;
        let mut queue = Self { bound, window_tokens, kv_blocks, next: 0, events: VecDeque::new() };
        queue.restart();
        queue
    }

    fn restart(&mut self) {
        self.events.clear();
        self.next = 0;
        self.add(&json!({"type": "created", "num_blocks_per_cache_level": [self.kv_blocks, 0]}));
    }

    /// What has happened since the last call; none when this worker does not keep such events.
    pub(super) fn drain(&mut self) -> Option<Vec<Value>> {
        self.bound.map(|_| self.events.drain(..).collect())
    }

    fn add(&mut self, data: &Value) {
        let Some(bound) = self.bound else { return };
        self.events
            .push_back(json!({"event_id": self.next, "data": data, "window_size": self.window_tokens}));
        self.next += 1;
        if self.events.len() > bound {
            self.events.pop_front();
        }
    }

    fn push(&mut self, events: &[OutEvent<'_>]) {
        if self.bound.is_none() {
            return;
        }
        for event in events {
            match event {
                OutEvent::Stored { names, parent, tokens, block_tokens, .. } => {
                    let token =
                        |id: &TokenId| json!({"type": "unique_token", "token_id": id, "token_extra_id": 0});
                    let block = |(name, tokens): (&u64, &[TokenId])| {
                        json!({
                            "type": "stored_block",
                            "block_hash": name,
                            "tokens": tokens.iter().map(token).collect::<Vec<_>>(),
                            "cache_level": 0,
                            "priority": 35,
                        })
                    };
                    let blocks: Vec<_> = names.iter().zip(tokens.chunks(*block_tokens)).map(block).collect();
                    self.add(&json!({"type": "stored", "parent_hash": parent, "blocks": blocks}));
                }
                OutEvent::Removed { name } => self.add(&json!({"type": "removed", "block_hashes": [name]})),
                OutEvent::Cleared => {}
            }
        }
    }
}
