//! Asking one TensorRT-LLM server for its KV events, again and again.
//!
//! The server forgets what it has handed out, drops the oldest when nobody asks in time, and can say nothing again:
//! a gap in its numbers means that the worker is forgotten and refilled by what it says from then on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashSet;
use hyper::header::HeaderValue;
use kvlane_indexer::{
    BlockHasher, BlockSize, EngineBlockId, KvEvent, Namespace, StoredBlock, Tier, WorkerId,
};
use parking_lot::Mutex;

use super::wire::{self, Block, Data, Event};
use crate::feed::{CopyRule, FeedClock, FeedHealth, FeedState, Sink, Target};
use crate::http_client::HttpClient;
use crate::tls::ClientTls;
use crate::translate::{LeftOut, WrongBlockSize};

/// What is asked, and how often.
#[derive(Clone, Debug)]
pub struct Poll {
    pub worker: WorkerId,
    /// The server's address, such as `http://host:8000`.
    pub url: String,
    pub block_size: BlockSize,
    /// Between two questions while there is something to say, and at most when there is not.
    pub shortest_pause: Duration,
    pub longest_pause: Duration,
    pub tls: Arc<ClientTls>,
}

impl Poll {
    pub fn new(worker: WorkerId, url: impl Into<String>, block_size: BlockSize) -> Self {
        Self {
            worker,
            url: url.into(),
            block_size,
            shortest_pause: Duration::from_millis(5),
            longest_pause: Duration::from_millis(50),
            tls: ClientTls::system(),
        }
    }
}

/// Largest answer that is read.
const MAX_ANSWER: usize = 256 << 20;
const PATIENCE: Duration = Duration::from_secs(10);
/// Partial blocks whose removal is waited for.
const MAX_PARTIAL: usize = 1 << 20;

/// One rank of one server's attention.
#[derive(Debug)]
struct Rank {
    sink: Sink,
    expected: Option<u64>,
    /// Largest window of any layer, as the first events tell.
    window: Option<u64>,
    /// Blocks that were not full: their removals mean nothing here.
    partial: HashSet<EngineBlockId>,
    /// Some blocks were stored in the host's memory.
    on_host: bool,
    left_out: LeftOut,
}

/// Ranks one server may have.
const MAX_RANKS: usize = 256;

/// See the [module](self). The ranks of a server's attention come in one queue, numbered each by itself.
pub struct Poller {
    poll: Poll,
    client: HttpClient,
    clock: FeedClock,
    targets: Box<dyn FnMut(WorkerId) -> Box<dyn Target> + Send>,
    ranks: BTreeMap<u32, Rank>,
    health: Arc<Mutex<Vec<Arc<FeedHealth>>>>,
}

impl Poller {
    /// `targets` makes what a rank's events change, when it is first heard of.
    pub fn new<T: Target + 'static>(
        poll: Poll,
        mut targets: impl FnMut(WorkerId) -> T + Send + 'static,
        clock: FeedClock,
    ) -> Self {
        let mut poller = Self {
            client: HttpClient::new(PATIENCE, MAX_ANSWER, poll.tls.clone()),
            clock,
            targets: Box::new(move |worker| Box::new(targets(worker))),
            ranks: BTreeMap::new(),
            health: Arc::default(),
            poll,
        };
        let first = poller.poll.worker.dp_rank;
        poller.rank(first);
        poller
    }

    /// Shows this with every question.
    #[must_use]
    pub fn bearing(mut self, authorization: Option<HeaderValue>) -> Self {
        self.client = self.client.bearing(authorization);
        self
    }

    /// The health of every rank heard of so far.
    pub fn health(&self) -> Arc<Mutex<Vec<Arc<FeedHealth>>>> {
        self.health.clone()
    }

    fn rank(&mut self, number: u32) -> Option<&mut Rank> {
        if !self.ranks.contains_key(&number) {
            if self.ranks.len() >= MAX_RANKS {
                return None;
            }
            let worker = WorkerId::new(self.poll.worker.instance, number);
            let health = Arc::new(FeedHealth::new(worker));
            self.health.lock().push(health.clone());
            let target = (self.targets)(worker);
            let sink = Sink::new(target, self.poll.block_size, CopyRule::Once, self.clock, health);
            self.ranks.insert(number, Rank::new(sink));
        }
        self.ranks.get_mut(&number)
    }

    fn set_state(&self, state: FeedState) {
        self.ranks.values().for_each(|rank| rank.sink.health().set_state(state));
    }

    /// Asks for as long as the engine is the right one.
    pub async fn run(mut self) -> WrongBlockSize {
        let url = format!("{}/kv_cache_events", self.poll.url.trim_end_matches('/'));
        let mut pause = self.poll.shortest_pause;
        loop {
            match self.client.post(&url).await {
                Ok(body) => match self.hear(&body) {
                    Ok(0) => pause = (pause * 3 / 2).min(self.poll.longest_pause),
                    Ok(_) => pause = self.poll.shortest_pause,
                    Err(error) => {
                        tracing::error!(worker = self.poll.worker.instance, %error, "KV event feed given up");
                        for rank in self.ranks.values_mut() {
                            rank.forget();
                            rank.sink.health().failed(&error.to_string());
                        }
                        self.set_state(FeedState::Refused);
                        return error;
                    }
                },
                Err(error) => {
                    // It may have died; what it then says begins anew.
                    for rank in self.ranks.values_mut() {
                        let health = rank.sink.health().clone();
                        if health.state() != FeedState::Connecting {
                            health.disconnected();
                            rank.forget();
                        }
                        health.failed(&error.to_string());
                    }
                    self.set_state(FeedState::Connecting);
                    pause = self.poll.longest_pause;
                }
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Takes an answer in, and says how many events it had.
    fn hear(&mut self, body: &[u8]) -> Result<usize, WrongBlockSize> {
        let events = match wire::decode(body) {
            Ok(events) => events,
            Err(error) => {
                // Handed out and lost.
                for rank in self.ranks.values_mut() {
                    rank.sink.health().undecodable(&error.to_string());
                    rank.forget();
                }
                self.set_state(FeedState::Partial);
                return Ok(0);
            }
        };
        let count = events.len();
        let (block_size, seconds) = (self.poll.block_size, self.clock.seconds());
        let mut heard: HashSet<u32> = HashSet::new();
        for event in events {
            let number = event.attention_dp_rank.unwrap_or(self.poll.worker.dp_rank);
            let Some(rank) = self.rank(number) else { continue };
            if heard.insert(number) {
                rank.sink.heard(seconds, 0);
            }
            rank.take(event, block_size)?;
            rank.sink.health().left_out(rank.left_out);
        }
        // It answers, so it is there, with nothing to say.
        for rank in self.ranks.values().filter(|rank| rank.sink.health().state() == FeedState::Connecting) {
            rank.sink.health().set_state(FeedState::Live);
        }
        Ok(count)
    }
}

#[cfg(fuzzing)]
impl Poller {
    /// Takes an answer in that nobody was asked for.
    pub fn hear_answer(&mut self, body: &[u8]) {
        let _ = self.hear(body);
    }
}

impl std::fmt::Debug for Poller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Poller").field("poll", &self.poll).field("ranks", &self.ranks).finish_non_exhaustive()
    }
}

impl Rank {
    fn new(sink: Sink) -> Self {
        Self {
            sink,
            expected: None,
            window: None,
            partial: HashSet::new(),
            on_host: false,
            left_out: LeftOut::default(),
        }
    }

    fn forget(&mut self) {
        self.sink.forget();
        self.partial.clear();
        (self.expected, self.window) = (None, None);
    }

    fn take(&mut self, event: Event, block_size: BlockSize) -> Result<(), WrongBlockSize> {
        match self.expected.replace(event.event_id.saturating_add(1)) {
            // Met in mid-stream, or from its beginning on.
            None => {
                let whole = event.event_id == 0;
                self.sink.health().set_state(if whole { FeedState::Live } else { FeedState::Partial });
            }
            Some(expected) if event.event_id != expected => {
                let health = self.sink.health();
                if event.event_id < expected {
                    health.restart();
                } else {
                    health.gap();
                }
                health.set_state(if event.event_id == 0 { FeedState::Live } else { FeedState::Partial });
                let next = self.expected;
                self.forget();
                self.expected = next;
            }
            _ => {}
        }
        // Layers with a sliding window come with a smaller one, and only the largest holds whole prompts.
        if event.window_size > self.window {
            if self.window.is_some() && !matches!(event.data, Data::Created {}) {
                self.sink.forget();
            }
            self.window = event.window_size;
        }
        if event.window_size.is_some() && event.window_size != self.window {
            self.left_out.other_layers += u64::from(!matches!(event.data, Data::Created {}));
            return Ok(());
        }
        match event.data {
            Data::Stored { parent_hash, blocks, lora_name } => {
                self.stored(parent_hash.map(|name| name.id()), &blocks, lora_name.as_deref(), block_size)?;
            }
            Data::Removed { block_hashes } => {
                let mut ids: Vec<EngineBlockId> = block_hashes.iter().map(wire::Name::id).collect();
                ids.retain(|id| !self.partial.remove(id));
                if self.on_host {
                    // Whichever memory it was in last.
                    self.sink.apply_event(KvEvent::Removed { tier: Tier::Host, ids: ids.clone() });
                }
                self.sink.apply_event(KvEvent::Removed { tier: Tier::Device, ids });
            }
            // A block that moves takes what follows it along only by name, so here it is gone: less, never more.
            Data::Updated { block_hash, cache_level: Some(moved) } if moved.old_value != moved.new_value => {
                if let Some(tier) = wire::tier(moved.old_value) {
                    self.sink.apply_event(KvEvent::Removed { tier, ids: vec![block_hash.id()] });
                }
            }
            Data::AllCleared {} => self.sink.apply_event(KvEvent::Cleared { tier: None }),
            Data::Updated { .. } | Data::Created {} | Data::Unknown => {}
        }
        Ok(())
    }

    fn stored(
        &mut self,
        parent: Option<EngineBlockId>,
        blocks: &[Block],
        lora_name: Option<&str>,
        block_size: BlockSize,
    ) -> Result<(), WrongBlockSize> {
        let Some(first) = blocks.first() else { return Ok(()) };
        let Some(tier) = wire::tier(first.cache_level) else {
            self.left_out.elsewhere += blocks.len() as u64;
            return Ok(());
        };
        if lora_name.is_none() && first.lora_id.is_some_and(|id| id != 0) {
            self.left_out.nameless_adapter += blocks.len() as u64;
            return Ok(());
        }
        let namespace = Namespace { lora_name, cache_salt: first.cache_salt.as_deref() };
        let hasher = BlockHasher::new(block_size, namespace);
        let mut kept = Vec::with_capacity(blocks.len());
        for block in blocks {
            if block.tokens.len() > block_size.tokens() {
                return Err(WrongBlockSize {
                    found: block.tokens.len() as u32,
                    expected: block_size.tokens(),
                });
            }
            let same = block.cache_level == first.cache_level && block.cache_salt == first.cache_salt;
            if block.tokens.len() < block_size.tokens() {
                self.left_out.partial += 1;
                if self.partial.len() < MAX_PARTIAL {
                    self.partial.insert(block.block_hash.id());
                }
                break;
            }
            if block.has_media() || !same {
                self.left_out.media += 1;
                break;
            }
            let tokens: Vec<u32> = block.tokens.iter().map(|token| token.token_id).collect();
            kept.extend(hasher.blocks(&tokens).map(|hash| StoredBlock { id: block.block_hash.id(), hash }));
        }
        if !kept.is_empty() {
            self.on_host |= tier == Tier::Host;
            self.sink.apply_event(KvEvent::Stored { tier, parent, blocks: kept });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use kvlane_indexer::{Index, IndexConfig};
    use serde_json::{Value, json};

    use super::*;
    use crate::feed::IndexTarget;

    fn poller(index: &Arc<Index>) -> Poller {
        let poll = Poll::new(WorkerId::new(1, 0), "http://engine", BlockSize::new(32).unwrap());
        let index = index.clone();
        Poller::new(
            poll,
            move |worker| IndexTarget::new(index.clone(), worker),
            FeedClock::starting(Duration::ZERO),
        )
    }

    fn blocks(index: &Index) -> usize {
        index.stats().workers.first().map_or(0, |stats| stats.device_blocks)
    }

    fn stored(event_id: u64, parent: Option<u64>, names: &[u64], tokens: usize) -> Value {
        let token = |id: usize| json!({"type": "unique_token", "token_id": id, "token_extra_id": 0});
        let tokens: Vec<Value> = (0..tokens).map(token).collect();
        let block = |name: &u64| json!({"type": "stored_block", "block_hash": name, "tokens": tokens, "cache_level": 0, "priority": 35});
        let blocks: Vec<Value> = names.iter().map(block).collect();
        json!({"event_id": event_id, "data": {"type": "stored", "parent_hash": parent, "blocks": blocks}, "window_size": 4096})
    }

    #[tokio::test]
    async fn the_sample_events_are_taken_in() {
        let sample: Value = serde_json::from_str(include_str!(
            "../../tests/fixtures/vllm/trtllm-kv_cache_events.SYNTHETIC.json"
        ))
        .unwrap();
        let index = Arc::new(Index::new(IndexConfig::default()));
        let mut poller = poller(&index);
        let events = sample["events"].as_array().unwrap();
        assert_eq!(poller.hear(json!(events[..2]).to_string().as_bytes()), Ok(2));
        let stored = events[1]["data"]["blocks"].as_array().unwrap();
        let full = stored.iter().filter(|block| block["tokens"].as_array().unwrap().len() == 32).count();
        assert_eq!((blocks(&index), full < stored.len()), (full, poller.ranks[&0].left_out.partial > 0));
        // The last full block moves to the host's memory and goes.
        poller.hear(json!(events[2..]).to_string().as_bytes()).unwrap();
        assert_eq!(blocks(&index), full - 1);
        assert_eq!(
            (poller.ranks[&0].sink.health().state(), poller.ranks[&0].sink.health().report().decode_errors),
            (FeedState::Live, 0)
        );
    }

    #[tokio::test]
    async fn gaps_partial_blocks_windows_and_large_names() {
        let index = Arc::new(Index::new(IndexConfig::default()));
        let mut poller = poller(&index);
        let mut say = |events: Value| poller.hear(events.to_string().as_bytes());
        let large = u64::MAX - 1;
        let created = |id, window| json!({"event_id": id, "data": {"type": "created", "num_blocks_per_cache_level": [10, 0]}, "window_size": window});
        say(json!([created(0, 512), created(1, 4096)])).unwrap();
        say(json!([stored(2, None, &[large], 32), stored(3, Some(large), &[7], 20)])).unwrap();
        assert_eq!(blocks(&index), 1);
        let mut sliding = stored(4, None, &[9], 32);
        sliding["window_size"] = 512.into();
        say(json!([sliding, {"event_id": 5, "data": {"type": "removed", "block_hashes": [7]}, "window_size": 4096}])).unwrap();
        assert_eq!(blocks(&index), 1);
        say(json!([{"event_id": 6, "data": {"type": "removed", "block_hashes": [large]}, "window_size": 4096}])).unwrap();
        assert_eq!(blocks(&index), 0);
        say(json!([stored(7, None, &[1], 32), stored(9, None, &[2], 32)])).unwrap();
        assert_eq!(blocks(&index), 1, "what came before the gap is forgotten");
        assert!(
            say(json!([stored(10, None, &[3], 64)]))
                .unwrap_err()
                .to_string()
                .contains("have 64 tokens, expected 32")
        );
        let rank = &poller.ranks[&0];
        let report = rank.sink.health().report();
        assert_eq!((report.gaps, rank.left_out.partial, rank.left_out.other_layers), (1, 1, 1));
        assert_eq!(report.state, FeedState::Partial);
    }

    #[tokio::test]
    async fn ranks_of_attention_are_workers_of_their_own() {
        let index = Arc::new(Index::new(IndexConfig::default()));
        let mut poller = poller(&index);
        let of = |rank: u32, mut event: Value| {
            event["attention_dp_rank"] = rank.into();
            event
        };
        let events = json!([
            of(0, stored(0, None, &[1], 32)),
            of(1, stored(0, None, &[1], 32)),
            of(0, stored(1, Some(1), &[2], 32))
        ]);
        poller.hear(events.to_string().as_bytes()).unwrap();
        let held: Vec<(u32, usize)> =
            index.stats().workers.iter().map(|stats| (stats.worker.dp_rank, stats.device_blocks)).collect();
        assert_eq!(held, [(0, 2), (1, 1)]);
        poller.hear(b"[{").unwrap();
        assert_eq!(blocks(&index), 0, "an answer that cannot be read is lost for good");
    }

    #[test]
    fn names_above_what_a_double_can_hold_are_exact() {
        let body = r#"[{"event_id": 1, "data": {"type": "removed", "block_hashes": [13951450858377288959, -3, "ab"]}}]"#;
        let events = wire::decode(body.as_bytes()).unwrap();
        let Data::Removed { block_hashes } = &events[0].data else { panic!("{events:?}") };
        assert_eq!(block_hashes[0].id().to_u64(), 13_951_450_858_377_288_959);
        assert_eq!(
            wire::decode(br#"[{"event_id": 1, "data": {"type": "new"}}]"#).unwrap()[0].data,
            Data::Unknown
        );
    }
}
