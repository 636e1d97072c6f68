//! How costs grow: with a prompt's length, with workers, with what the index holds; and what it takes to hold it.
//!
//! Each figure is the middle of many; from a series the exponent is fitted (the slope of logarithms): 0 does not grow, 1 is
//! in proportion.

#![allow(clippy::print_stdout, reason = "a bench")]

use std::hint::black_box;

use fixtures::path::PathCase;
use fixtures::random::mix;
use fixtures::{heap, index, median_us, worker};
use kvlane_indexer::{BlockHash, EngineBlockId, Index, KvEvent, SequenceHash, StoredBlock, Tick, Tier};

#[global_allocator]
static HEAP: heap::Counting = heap::Counting;

/// The exponent that fits a series best.
fn exponent(series: &[(f64, f64)]) -> f64 {
    let logs: Vec<(f64, f64)> = series.iter().map(|(x, y)| (x.ln(), y.ln())).collect();
    let count = logs.len() as f64;
    let (mean_x, mean_y) =
        (logs.iter().map(|(x, _)| x).sum::<f64>() / count, logs.iter().map(|(_, y)| y).sum::<f64>() / count);
    let above: f64 = logs.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    above / logs.iter().map(|(x, _)| (x - mean_x).powi(2)).sum::<f64>()
}

fn show(name: &str, series: &[(f64, f64)]) {
    let shown: Vec<String> = series.iter().map(|(x, us)| format!("{x:.0}: {us:.1}")).collect();
    println!("{name}, us: {}; exponent {:.2}", shown.join(", "), exponent(series));
}

/// Paths of 200 blocks that share 100 with some others, so many blocks on each of 8 workers.
fn filled(blocks: u64) -> Index {
    let index = index();
    for n in 0..8 {
        for path in 0..blocks / 100 {
            let block = |at: u64| {
                // Documents are everybody's, conversations one worker's.
                let owner = if at < 100 { path % 10 } else { 1000 + path + ((n as u64) << 24) };
                let hash = BlockHash(mix(owner << 16 | at));
                StoredBlock { id: EngineBlockId::from(mix(owner << 16 | at | 1 << 62)), hash }
            };
            let first = path < 10;
            let parent = (!first).then(|| block(99).id);
            let stored: Vec<_> = (if first { 0 } else { 100 }..200).map(block).collect();
            let event = KvEvent::Stored { tier: Tier::Device, parent, blocks: stored };
            if index.apply(worker(n), &event, Tick(1)).is_err() {
                unreachable!("paths are stored from their beginnings");
            }
        }
    }
    index
}

fn main() {
    let lengths = [1000, 4000, 16_000, 64_000, 128_000];
    let of = |tokens: usize, workers: usize| {
        let case = PathCase::new(tokens, workers);
        median_us(|| {
            black_box(case.decide());
        })
    };
    show("decision by tokens, 64 workers", &lengths.map(|tokens| (tokens as f64, of(tokens, 64))));
    let fleets = [4, 16, 64, 256, 1024];
    show("decision by workers, 8,000 tokens", &fleets.map(|workers| (workers as f64, of(8000, workers))));

    let held = [10_000, 100_000, 1_000_000];
    let mut series = Vec::new();
    for blocks in held {
        let before = heap::live_bytes();
        let index = filled(blocks / 8);
        let bytes = heap::live_bytes() - before;
        let stats = index.stats();
        let asked: Vec<BlockHash> =
            (0..200).map(|at| BlockHash(mix((if at < 100 { 3 } else { 1013 }) << 16 | at))).collect();
        let path: Vec<SequenceHash> = SequenceHash::chain(None, asked).collect();
        let us = median_us(|| {
            black_box(index.overlap(black_box(&path), Tick(1)));
        });
        println!(
            "{blocks} blocks on 8 workers: {:.1} MB of heap, {:.1} MB by its own count, {} nodes; overlap of 200 blocks {us:.2} us",
            bytes as f64 / 1e6,
            stats.bytes as f64 / 1e6,
            stats.nodes
        );
        series.push((blocks as f64, us));
    }
    show("overlap by blocks held", &series);
}
