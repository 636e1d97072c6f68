//! The index beside its peer, in one run: Dynamo's default index, `ConcurrentRadixTreeCompressed` in its
//! thread pool, as published in crate `dynamo-kv-router` 1.6.1. Needs the feature `peer`: `make bench-peer`.
//!
//! Five rounds, ours and the peer's taking turns, best round counts. Timed for both:
//!
//! - overlap: one lookup on the caller's thread, over all prompts in random order;
//! - store, remove: every event of a history handed over and *applied* (the peer's queues flushed);
//! - bytes: live heap bytes after the stores, as a counting allocator sees them.
//!
//! Not timed: making the events, and for the peer copying them, since it takes them by value.

#![allow(clippy::print_stdout, reason = "prints its results")]
#![allow(clippy::disallowed_methods, reason = "a bench reads the real clock")]

#[cfg(not(feature = "peer"))]
fn main() {
    println!("the peer is not built in; run `make bench-peer`");
}

#[cfg(feature = "peer")]
fn main() {
    measured::main();
}

#[cfg(feature = "peer")]
#[global_allocator]
static HEAP: fixtures::heap::Counting = fixtures::heap::Counting;

#[cfg(feature = "peer")]
mod measured {
    use std::hint::black_box;
    use std::time::{Duration, Instant};

    use dynamo_kv_router::ConcurrentRadixTreeCompressed;
    use dynamo_kv_router::indexer::{KvIndexerInterface, SyncIndexer, ThreadPoolIndexer};
    use dynamo_kv_router::protocols::{
        ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData, KvCacheStoreData,
        KvCacheStoredBlockData, LocalBlockHash, RouterEvent,
    };
    use fixtures::{Events, Workload, block_count, heap, index, multi_turn, trace, trace_requests};
    use kvlane_indexer::{Index, KvEvent, Overlap, Tick};

    const ROUNDS: usize = 5;
    /// The peer's own default.
    const PEER_THREADS: usize = 4;

    /// What one side did in its best round.
    #[derive(Clone, Copy, Debug)]
    struct Best {
        overlap_ns: f64,
        store_ns: f64,
        remove_ns: f64,
        /// Of the whole history and drain together: what a mixed stream costs.
        apply_ns: f64,
        bytes: f64,
    }

    impl Best {
        const NONE: Self = Self {
            overlap_ns: f64::MAX,
            store_ns: f64::MAX,
            remove_ns: f64::MAX,
            apply_ns: f64::MAX,
            bytes: f64::MAX,
        };

        fn take(&mut self, round: Self) {
            self.overlap_ns = self.overlap_ns.min(round.overlap_ns);
            self.store_ns = self.store_ns.min(round.store_ns);
            self.remove_ns = self.remove_ns.min(round.remove_ns);
            self.apply_ns = self.apply_ns.min(round.apply_ns);
            self.bytes = self.bytes.min(round.bytes);
        }
    }

    /// What both sides are measured on.
    struct Task<'a> {
        workload: &'a Workload,
        history_blocks: f64,
        drain_blocks: f64,
        /// (worker, block) pairs held between history and drain.
        held: f64,
    }

    impl Task<'_> {
        fn result(&self, store: Duration, remove: Duration, overlap: Duration, bytes: usize) -> Best {
            let (store, remove) = (store.as_nanos() as f64, remove.as_nanos() as f64);
            Best {
                overlap_ns: overlap.as_nanos() as f64 / self.workload.prompts.len() as f64,
                store_ns: store / self.history_blocks,
                remove_ns: remove / self.drain_blocks,
                apply_ns: (store + remove) / (self.history_blocks + self.drain_blocks),
                bytes: bytes as f64 / self.held,
            }
        }
    }

    fn timed(work: impl FnOnce()) -> Duration {
        let start = Instant::now();
        work();
        start.elapsed()
    }

    fn ours(task: &Task<'_>) -> Best {
        let before = heap::live_bytes();
        let index = index();
        let store = timed(|| fixtures::apply(&index, &task.workload.history));
        let bytes = heap::live_bytes() - before;
        let mut overlap = Overlap::default();
        let mut ask = || {
            for prompt in &task.workload.prompts {
                index.overlap_into(&prompt.hashes, Tick(1), &mut overlap);
                black_box(overlap.device());
            }
        };
        ask();
        let asked = timed(ask);
        let remove = timed(|| fixtures::apply(&index, &task.workload.drain));
        assert_eq!(index.stats().nodes, 0);
        task.result(store, remove, asked, bytes)
    }

    fn peer_event(worker: u64, id: u64, event: &KvEvent) -> RouterEvent {
        let data = match event {
            KvEvent::Stored { parent, blocks, .. } => KvCacheEventData::Stored(KvCacheStoreData {
                parent_hash: parent.map(|id| ExternalSequenceBlockHash(id.to_u64())),
                start_position: None,
                blocks: blocks
                    .iter()
                    .map(|block| KvCacheStoredBlockData {
                        block_hash: ExternalSequenceBlockHash(block.id.to_u64()),
                        tokens_hash: LocalBlockHash(block.hash.0),
                        mm_extra_info: None,
                    })
                    .collect(),
            }),
            KvEvent::Removed { ids, .. } => KvCacheEventData::Removed(KvCacheRemoveData {
                block_hashes: ids.iter().map(|id| ExternalSequenceBlockHash(id.to_u64())).collect(),
            }),
            KvEvent::Cleared { .. } => KvCacheEventData::Cleared,
        };
        RouterEvent::new(worker, KvCacheEvent { event_id: id, data, dp_rank: 0 })
    }

    fn peer_events(events: &Events, first_id: usize) -> Vec<RouterEvent> {
        let numbered = events.iter().zip(first_id as u64..);
        numbered.map(|((worker, event), id)| peer_event(worker.instance, id, event)).collect()
    }

    fn peer(task: &Task<'_>, runtime: &tokio::runtime::Runtime) -> Best {
        let history = peer_events(&task.workload.history, 1);
        let drain = peer_events(&task.workload.drain, 1 + history.len());
        let prompts: Vec<Vec<_>> = task
            .workload
            .prompts
            .iter()
            .map(|prompt| prompt.blocks.iter().map(|block| LocalBlockHash(block.0)).collect())
            .collect();
        // Handed over, the events are the peer's to free: what it holds afterwards is what it keeps.
        let before = heap::live_bytes();
        let of_events = |events: &Vec<RouterEvent>| {
            let blocks = events.iter().map(|event| match &event.event.data {
                KvCacheEventData::Stored(stored) => {
                    stored.blocks.capacity() * size_of::<KvCacheStoredBlockData>()
                }
                _ => 0,
            });
            blocks.sum::<usize>() + events.capacity() * size_of::<RouterEvent>()
        };
        let handed_over = of_events(&history);
        let indexer = ThreadPoolIndexer::new(ConcurrentRadixTreeCompressed::new(), PEER_THREADS, 16);
        let apply = |events: Vec<RouterEvent>| {
            runtime.block_on(async {
                for event in events {
                    indexer.apply_event(event).await;
                }
                if let Err(error) = indexer.flush_and_wait().await {
                    unreachable!("the peer's threads are alive: {error}");
                }
            });
        };
        let store = timed(|| apply(history));
        let bytes = (heap::live_bytes() + handed_over).saturating_sub(before);
        let ask = || {
            for prompt in &prompts {
                black_box(indexer.backend().find_matches(prompt, false));
            }
        };
        ask();
        let asked = timed(ask);
        let remove = timed(|| apply(drain));
        indexer.shutdown();
        task.result(store, remove, asked, bytes)
    }

    fn compare(name: &str, workload: &Workload, runtime: &tokio::runtime::Runtime) {
        let held: usize = {
            let index: Index = index();
            fixtures::apply(&index, &workload.history);
            index.stats().workers.iter().map(|worker| worker.device_blocks).sum()
        };
        let task = Task {
            workload,
            history_blocks: block_count(&workload.history) as f64,
            drain_blocks: block_count(&workload.drain) as f64,
            held: held as f64,
        };
        let (mut us, mut them) = (Best::NONE, Best::NONE);
        for _ in 0..ROUNDS {
            us.take(ours(&task));
            them.take(peer(&task, runtime));
        }
        let row = |what: &str, us: f64, them: f64| {
            println!("| {name} | {what} | {us:.1} | {them:.1} | {:.2} |", them / us);
        };
        row("overlap, ns a prompt", us.overlap_ns, them.overlap_ns);
        row("history applied, ns a block", us.store_ns, them.store_ns);
        row("drain applied, ns a block", us.remove_ns, them.remove_ns);
        row("history and drain, ns a block", us.apply_ns, them.apply_ns);
        row("heap bytes a held block", us.bytes, them.bytes);
    }

    pub(crate) fn main() {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().build() else {
            unreachable!("a runtime of this thread can be made");
        };
        println!("| workload | measured, best of {ROUNDS} | ours | peer | peer / ours |");
        println!("|---|---|--:|--:|--:|");
        for workers in [4, 64, 256] {
            compare(&format!("multi-turn, {workers} workers"), &multi_turn(workers), &runtime);
        }
        let (name, requests) = trace_requests(2000);
        for workers in [8, 64] {
            compare(&format!("{name}, {workers} workers"), &trace(&requests, workers), &runtime);
        }
    }
}
