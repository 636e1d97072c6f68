//! A seed's scenario: workers, conversations, who asks when, and what goes wrong.

use std::sync::Arc;
use std::time::Duration;

use kvlane_engine_adapters::sim::Calibration;
use kvlane_indexer::{BlockHash, BlockHasher, BlockSize, Namespace, SequenceHash, TokenId};
use kvlane_router::proxy::breaker::BreakerConfig;
use kvlane_router::scheduling::{Policy, Priority, WaitingRules, Weights};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Tokens in a block: few, so that small prompts have many.
pub(super) const BLOCK_TOKENS: usize = 4;
/// What requests may ask for: a base model, and an adapter that not all workers serve.
pub(super) const MODELS: [&str; 2] = ["base", "adapter"];

/// How a worker's events travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plane {
    /// To the router, with so many batches kept for replay.
    Straight {
        kept: usize,
    },
    /// To a bridge, and from there over NATS.
    Bridged {
        kept: usize,
    },
    Nowhere,
}

impl Plane {
    pub(super) fn kept(self) -> usize {
        match self {
            Self::Straight { kept } | Self::Bridged { kept } => kept,
            Self::Nowhere => 0,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct WorkerPlan {
    pub(super) calibration: Calibration,
    pub(super) plane: Plane,
    /// Slots it is said to have.
    pub(super) said: Option<u32>,
    pub(super) adapter: bool,
}

/// One request, whatever becomes of those before it.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) at_ms: f64,
    pub(super) model: usize,
    pub(super) priority: Priority,
    pub(super) session: Option<u64>,
    /// Prompt and answer.
    pub(super) tokens: Arc<[TokenId]>,
    pub(super) blocks: Vec<BlockHash>,
    pub(super) prompt_tokens: usize,
    pub(super) prompt: Arc<[SequenceHash]>,
    /// When its client goes away, counted from its coming.
    pub(super) cancels_ms: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fault {
    /// The process dies, and another one comes; it may run another number of requests at a time.
    Crash {
        worker: usize,
        down_ms: f64,
        batch: Option<usize>,
    },
    /// Nothing moves for a while; then it goes on, or dies.
    Hang {
        worker: usize,
        ms: f64,
        dies: bool,
    },
    /// Answers with this status for a while.
    Refuses {
        worker: usize,
        ms: f64,
        status: u16,
    },
    Drain {
        worker: usize,
        ms: f64,
    },
    /// A share of its events is treated so for a while.
    Events {
        worker: usize,
        ms: f64,
        how: Mishap,
        share: f64,
    },
    BridgeRestart {
        worker: usize,
        down_ms: f64,
    },
    /// Of the router, or of one bridge. What is said meanwhile is lost, or comes later.
    Partition {
        bridge: Option<usize>,
        ms: f64,
        held: bool,
    },
    RouterRestart {
        down_ms: f64,
    },
    /// The ticks the router gives its index.
    TickJump {
        seconds: i64,
    },
    /// A worker's wall clock, which its batches carry.
    WallJump {
        worker: usize,
        seconds: f64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mishap {
    Lost,
    Twice,
    Reordered,
    Delayed,
    /// Replays break off.
    ReplayCut,
}

impl Fault {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Crash { .. } => "crash",
            Self::Hang { dies: false, .. } => "hang",
            Self::Hang { dies: true, .. } => "hang_then_death",
            Self::Refuses { .. } => "refusals",
            Self::Drain { .. } => "drain",
            Self::Events { how: Mishap::Lost, .. } => "events_lost",
            Self::Events { how: Mishap::Twice, .. } => "events_twice",
            Self::Events { how: Mishap::Reordered, .. } => "events_reordered",
            Self::Events { how: Mishap::Delayed, .. } => "events_delayed",
            Self::Events { how: Mishap::ReplayCut, .. } => "replays_cut",
            Self::BridgeRestart { .. } => "bridge_restart",
            Self::Partition { bridge: None, .. } => "partition_router",
            Self::Partition { bridge: Some(_), .. } => "partition_bridge",
            Self::RouterRestart { .. } => "router_restart",
            Self::TickJump { .. } => "tick_jump",
            Self::WallJump { .. } => "wall_jump",
        }
    }

    /// Every name there is; and that of workers whose slots are not what is said.
    pub(super) const NAMES: [&'static str; 17] = [
        "crash",
        "hang",
        "hang_then_death",
        "refusals",
        "drain",
        "events_lost",
        "events_twice",
        "events_reordered",
        "events_delayed",
        "replays_cut",
        "bridge_restart",
        "partition_router",
        "partition_bridge",
        "router_restart",
        "tick_jump",
        "wall_jump",
        "slot_lie",
    ];
}

/// The router's settings, small so that their limits are met.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) policy: Policy,
    pub(super) waiting: WaitingRules,
    pub(super) overflow: f64,
    pub(super) retries: usize,
    pub(super) first_byte: Duration,
    pub(super) idle: Duration,
    pub(super) breaker: BreakerConfig,
    pub(super) probe_ms: f64,
    pub(super) down_after: u32,
    pub(super) predicted_ttl_s: u32,
    pub(super) approximate_ttl_s: u32,
    pub(super) audit: bool,
    /// Events that may wait at a bridge.
    pub(super) outbox: usize,
}

#[derive(Clone, Debug)]
pub(super) struct Script {
    pub(super) workers: Vec<WorkerPlan>,
    pub(super) asks: Vec<Ask>,
    pub(super) faults: Vec<(f64, Fault)>,
    pub(super) rules: Rules,
    /// From then on nothing goes wrong any more.
    pub(super) quiet_ms: f64,
    /// The longest path of each conversation: whoever is right about these is right about every prompt.
    pub(super) paths: Vec<Arc<[SequenceHash]>>,
}

/// Longest prompt and answer together, in blocks; every engine has room for two of them.
const LONGEST_BLOCKS: usize = 16;

impl Script {
    pub(super) fn of(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xFA_0175);
        let span_ms = *pick(&mut random, &[2_500.0, 5_000.0, 10_000.0]) * random.random_range(0.8..1.6);
        let workers: Vec<WorkerPlan> = worker_plans(&mut random);
        let (asks, paths) = conversations(&mut random, span_ms);
        let faults = faults(&mut random, workers.len(), span_ms);
        Self { rules: rules(&mut random), workers, asks, faults, quiet_ms: span_ms + 2_000.0, paths }
    }
}

fn worker_plans(random: &mut StdRng) -> Vec<WorkerPlan> {
    let count = random.random_range(2..=5);
    let bridged = random.random_range(0.0..1.0);
    let plan = |n: usize| {
        let max_batch = random.random_range(1..=4);
        let calibration = Calibration {
            name: format!("w{n}"),
            max_batch,
            max_num_tokens: *pick(random, &[16, 64, 4096]),
            block_tokens: BLOCK_TOKENS,
            kv_blocks: random.random_range(2 * LONGEST_BLOCKS..=5 * LONGEST_BLOCKS),
            reserve_output: random.random(),
            lag_steps: 0.0,
            weights_ms: random.random_range(15.0..70.0),
            kv_ns_per_token: 0.0,
            eager_ms: 0.0,
            graph_max: 64,
            graph_sizes: Vec::new(),
            prefill_us_per_token: random.random_range(100.0..1500.0),
            roofline: false,
            attention_ps_per_pair: 0.0,
            launch_ms: 0.0,
            speculation: None,
            outside: kvlane_engine_adapters::sim::OutsideDelay::default(),
        };
        let kept = *pick(random, &[4, 32, 10_000, 10_000]);
        let plane = match random.random_range(0.0..1.0) {
            drawn if drawn < 0.08 => Plane::Nowhere,
            _ if random.random_bool(bridged) => Plane::Bridged { kept },
            _ => Plane::Straight { kept },
        };
        let said = match random.random_range(0..10) {
            0 | 1 => None,
            2 => Some(64),
            3 => Some(1),
            _ => Some(max_batch as u32),
        };
        WorkerPlan { calibration, plane, said, adapter: n == 0 || random.random() }
    };
    (0..count).map(plan).collect()
}

fn conversations(random: &mut StdRng, span_ms: f64) -> (Vec<Ask>, Vec<Arc<[SequenceHash]>>) {
    let (mut asks, mut paths) = (Vec::new(), Vec::new());
    let wanted = random.random_range(40..=110);
    let systems: Vec<Vec<TokenId>> = (0..3).map(|_| tokens(random, BLOCK_TOKENS, 4 * BLOCK_TOKENS)).collect();
    let sessions: bool = random.random();
    let leaves = *pick(random, &[0.05, 0.2, 0.4]);
    while asks.len() < wanted {
        let model = usize::from(random.random_bool(0.25));
        let priority = *pick(random, &[Priority::High, Priority::Normal, Priority::Normal, Priority::Low]);
        let size = BlockSize::new(BLOCK_TOKENS as u32).unwrap_or(BlockSize::USUAL);
        let lora_name = (model == 1).then_some(MODELS[1]);
        let hasher = BlockHasher::new(size, Namespace { lora_name, cache_salt: None });
        let mut said = pick(random, &systems).clone();
        let mut at_ms = random.random_range(0.0..span_ms);
        let id: u64 = random.random();
        let mut longest: Arc<[SequenceHash]> = Arc::from([]);
        for _ in 0..random.random_range(1..=6) {
            said.extend(tokens(random, 3, 12));
            let prompt_tokens = said.len();
            said.extend(tokens(random, 1, 14));
            if said.len() > LONGEST_BLOCKS * BLOCK_TOKENS || at_ms > span_ms {
                break;
            }
            let blocks: Vec<BlockHash> = hasher.blocks(&said).collect();
            let path: Vec<SequenceHash> = SequenceHash::chain(None, blocks.iter().copied()).collect();
            asks.push(Ask {
                at_ms,
                model,
                priority,
                session: sessions.then_some(id),
                tokens: said.clone().into(),
                prompt: path[..prompt_tokens / BLOCK_TOKENS].into(),
                blocks,
                prompt_tokens,
                cancels_ms: random.random_bool(leaves).then(|| cancels_after(random)),
            });
            longest = path.into();
            at_ms += random.random_range(50.0..3_000.0);
        }
        if !longest.is_empty() {
            paths.push(longest);
        }
    }
    asks.sort_by(|one, other| one.at_ms.total_cmp(&other.at_ms));
    (asks, paths)
}

/// At once, soon, or in the middle of its answer.
fn cancels_after(random: &mut StdRng) -> f64 {
    match random.random_range(0..3) {
        0 => random.random_range(0.0..4.0),
        1 => random.random_range(0.0..300.0),
        _ => random.random_range(0.0..3_000.0),
    }
}

fn faults(random: &mut StdRng, workers: usize, span_ms: f64) -> Vec<(f64, Fault)> {
    let count = random.random_range(5..=30);
    let one = |_: usize| {
        let worker = random.random_range(0..workers);
        let ms = random.random_range(100.0..4_000.0);
        let fault = match random.random_range(0..22) {
            0..3 => {
                let batch = random.random_bool(0.3).then(|| random.random_range(1..=6));
                Fault::Crash { worker, down_ms: ms, batch }
            }
            3 | 4 => Fault::Hang { worker, ms, dies: random.random_bool(0.4) },
            5 => Fault::Refuses { worker, ms, status: *pick(random, &[429, 500, 503]) },
            6 => Fault::Drain { worker, ms },
            7..14 => {
                let how = *pick(
                    random,
                    &[
                        Mishap::Lost,
                        Mishap::Lost,
                        Mishap::Twice,
                        Mishap::Reordered,
                        Mishap::Delayed,
                        Mishap::ReplayCut,
                    ],
                );
                Fault::Events { worker, ms, how, share: random.random_range(0.05..0.9) }
            }
            14 => Fault::BridgeRestart { worker, down_ms: ms },
            15 | 16 => {
                let bridge = random.random::<bool>().then_some(worker);
                let ms = if random.random_bool(0.2) { 4.0 * ms } else { ms };
                Fault::Partition { bridge, ms, held: random.random() }
            }
            17 | 18 => Fault::RouterRestart { down_ms: ms / 8.0 },
            19 => Fault::TickJump { seconds: random.random_range(-100..=100) },
            _ => Fault::WallJump { worker, seconds: random.random_range(-50.0..50.0) },
        };
        (random.random_range(0.0..span_ms), fault)
    };
    let mut faults: Vec<(f64, Fault)> = (0..count).map(one).collect();
    faults.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    faults
}

fn rules(random: &mut StdRng) -> Rules {
    let ms = |ms: u64| Duration::from_millis(ms);
    let kvlane = Policy::Kv(Weights::KVLANE);
    let policies = [
        kvlane,
        kvlane,
        kvlane,
        Policy::Kv(Weights::DYNAMO),
        Policy::RoundRobin,
        Policy::LeastLoaded,
        Policy::PowerOfTwo,
        Policy::Session,
    ];
    Rules {
        policy: *pick(random, &policies),
        waiting: WaitingRules {
            most: random.random_range(2..=40),
            patience: ms(random.random_range(300..6_000)),
            weights: [4.0, 2.0, 1.0],
        },
        overflow: *pick(random, &[0.0, 0.0, 0.5, 1.0]),
        retries: random.random_range(0..=3),
        first_byte: ms(random.random_range(800..5_000)),
        idle: ms(random.random_range(500..4_000)),
        breaker: BreakerConfig {
            failures: random.random_range(1..=4),
            share: 0.5,
            open_for: ms(random.random_range(100..1_500)),
        },
        probe_ms: *pick(random, &[300.0, 1_000.0]),
        down_after: random.random_range(1..=3),
        predicted_ttl_s: *pick(random, &[0, 2, 10]),
        approximate_ttl_s: *pick(random, &[5, 60]),
        audit: random.random(),
        outbox: *pick(random, &[2, 1 << 16, 1 << 16]),
    }
}

fn tokens(random: &mut StdRng, least: usize, most: usize) -> Vec<TokenId> {
    let count = random.random_range(least..=most);
    (0..count).map(|_| random.random_range(1..50_000)).collect()
}

pub(super) fn pick<'a, T>(random: &mut StdRng, among: &'a [T]) -> &'a T {
    &among[random.random_range(0..among.len())]
}
