//! Three workers, three conversations over two documents: what the index says before each turn.
//!
//! The workers' events are made up here; everything else is the real thing. `cargo run -p kvlane-indexer --example three_workers` runs it.

#![allow(clippy::print_stdout, reason = "prints what it shows")]

use std::cmp::Reverse;

use kvlane_indexer::{
    BlockHasher, BlockSize, EngineBlockId, EventError, Index, IndexConfig, KvEvent, Namespace, SequenceHash,
    StoredBlock, Tick, Tier, TokenId, WorkerId,
};

const BLOCK_TOKENS: u32 = 16;

/// Tokens of a text that is not there: any ids will do.
fn tokens(seed: u32, count: u32) -> Vec<TokenId> {
    (0..count).map(|n| (seed * 7919 + n * 104_729) % 128_000).collect()
}

/// What a worker's engine announces once it has computed a prompt's blocks from `cached` on.
fn computed(hasher: &BlockHasher, prompt: &[TokenId], cached: u32) -> KvEvent {
    let hashes = hasher.sequence(prompt);
    let id = |hash: SequenceHash| EngineBlockId::from(hash.0);
    let blocks = hasher.blocks(prompt).zip(&hashes).map(|(hash, name)| StoredBlock { id: id(*name), hash });
    let parent = cached.checked_sub(1).map(|last| id(hashes[last as usize]));
    KvEvent::Stored { tier: Tier::Device, parent, blocks: blocks.skip(cached as usize).collect() }
}

fn main() -> Result<(), EventError> {
    let Some(block_size) = BlockSize::new(BLOCK_TOKENS) else { unreachable!("sixteen is not zero") };
    let hasher = BlockHasher::new(block_size, Namespace::default());
    let index = Index::new(IndexConfig::default());
    let workers: Vec<_> = (0..3).map(|instance| WorkerId::new(instance, 0)).collect();
    for worker in &workers {
        index.register(*worker)?;
    }

    let (manual, report) = (tokens(1, 3500), tokens(2, 3800));
    let mut conversations = [manual.clone(), manual, report];
    let mut turns = [0; 3];
    println!("turn  conversation  prompt blocks  held by worker 0 / 1 / 2  goes to  computed anew");
    for turn in 0..4 {
        for (n, prompt) in conversations.iter_mut().enumerate() {
            let now = Tick(turn);
            prompt.extend(tokens(100 + turn * 10 + n as u32, 200));
            let overlap = index.overlap(&hasher.sequence(prompt), now);
            let held: Vec<u32> = workers.iter().map(|worker| overlap.of(*worker).device).collect();
            // The longest match wins here, and the idlest worker without one; the router will weigh the two.
            let best = (0..3).max_by_key(|worker| (held[*worker], Reverse(turns[*worker]))).unwrap_or(0);
            turns[best] += 1;
            let blocks = hasher.block_count(prompt.len()) as u32;
            println!(
                "{turn:>4}  {n:>12}  {blocks:>13}  {:>24}  {best:>7}  {:>6} blocks",
                format!("{} / {} / {}", held[0], held[1], held[2]),
                blocks - held[best],
            );
            let _ = index.apply(workers[best], &computed(&hasher, prompt, held[best]), now)?;
        }
    }
    let stats = index.stats();
    println!(
        "\nindex: {} distinct blocks in {} nodes, {} bytes",
        stats.distinct_blocks, stats.nodes, stats.bytes
    );
    Ok(())
}
